/*
 * Calls every C function of blkin, and prints the events with their fields that a reader of the
 * trace must find. It is compiled with and without BLKIN_FIRST_GENERATION.
 */
#include <zipkin_c.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#ifdef BLKIN_FIRST_GENERATION
#define STRING_EVENT "zipkin:keyval"
#define PORT 40000
#define ENDPOINT trace_endpoint
#define ANNOTATION_ENDPOINT annotation_endpoint
#else
#define STRING_EVENT "zipkin:keyval_string"
#define PORT 6800
#define ENDPOINT endpoint
#define ANNOTATION_ENDPOINT endpoint
#endif

#define CHECK(condition)							\
	do {									\
		if (!(condition)) {						\
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);	\
			return 1;						\
		}								\
	} while (0)

static void expect(const char *event, const struct blkin_trace *trace, const struct blkin_endpoint *at, const char *rest)
{
	printf("%s { trace_name = \"%s\", service_name = \"%s\", port_no = %d, ip = \"%s\", trace_id = %" PRId64
	       ", span_id = %" PRId64 ", parent_span_id = %" PRId64 ", %s }\n",
	       event, trace->name, at->name, at->port, at->ip, trace->info.trace_id, trace->info.span_id,
	       trace->info.parent_span_id, rest);
}

static void expect_event(const struct blkin_trace *trace, const struct blkin_endpoint *at, const char *event)
{
	char rest[64];

	snprintf(rest, sizeof rest, "event = \"%s\"", event);
	expect("zipkin:timestamp", trace, at, rest);
}

int main(void)
{
	const char *moments[] = { CLIENT_SEND, CLIENT_RECV, SERVER_SEND, SERVER_RECV, WIRE_SEND, WIRE_RECV,
				  CLIENT_SEND_FRAGMENT, CLIENT_RECV_FRAGMENT, SERVER_SEND_FRAGMENT, SERVER_RECV_FRAGMENT };
	const char *words[] = { "cs", "cr", "ss", "sr", "ws", "wr", "csf", "crf", "ssf", "srf" };
	struct blkin_endpoint here, there;
	struct blkin_trace root, child, remote, same;
	struct blkin_trace_info info, unpacked;
	struct blkin_trace_info_packed packed;
	struct blkin_annotation annotation;
	unsigned char *bytes = (unsigned char *) &packed;

	CHECK(blkin_init() == 0);
	CHECK(blkin_init() == 0);
	CHECK(blkkin_enabled() || !*blkkin_init_error());
	CHECK(blkin_init_endpoint(&here, "10.0.0.1", PORT, "osd") == 0);
	CHECK(blkin_init_endpoint(&there, "10.0.0.2", 22, "messenger") == 0);

	CHECK(blkin_init_new_trace(&root, "write \"x\"", &here) == 0);
	root.name = "write";
	CHECK(root.info.trace_id && root.info.span_id && !root.info.parent_span_id && root.ENDPOINT == &here);
	for (int each = 0; each < 10; each++) {
		CHECK(!strcmp(moments[each], words[each]));
		BLKIN_TIMESTAMP(&root, &here, moments[each]);
		expect_event(&root, &here, words[each]);
	}

	/* The macros must compile with and without a semicolon. */
	BLKIN_KEYVAL_STRING(&root, &there, "object", "rbd_data.1")
	expect(STRING_EVENT, &root, &there, "key = \"object\", val = \"rbd_data.1\"");
	BLKIN_KEYVAL_STRING(&root, NULL, "pool", "");
	expect(STRING_EVENT, &root, &here, "key = \"pool\", val = \"\"");
	BLKIN_KEYVAL_INTEGER(&root, &here, "length", INT64_MIN);
	expect("zipkin:keyval_integer", &root, &here, "key = \"length\", val = -9223372036854775808");

	CHECK(blkin_init_child(&child, &root, NULL, "submit") == 0);
	CHECK(child.info.trace_id == root.info.trace_id && child.info.parent_span_id == root.info.span_id);
	CHECK(child.info.span_id != root.info.span_id && child.ENDPOINT == &here);
	CHECK(blkin_init_timestamp_annotation(&annotation, "queued", &there) == 0);
	CHECK(annotation.type == ANNOT_TIMESTAMP && !strcmp(annotation.val_str, "queued"));
	CHECK(annotation.ANNOTATION_ENDPOINT == &there);
	CHECK(blkin_record(&child, &annotation) == 0);
	expect_event(&child, &there, "queued");
	CHECK(blkin_init_string_annotation(&annotation, "queue", "high", NULL) == 0);
	CHECK(annotation.type == ANNOT_STRING && !strcmp(annotation.key, "queue") && !strcmp(annotation.val_str, "high"));
	CHECK(blkin_record(&child, &annotation) == 0);
	expect(STRING_EVENT, &child, &here, "key = \"queue\", val = \"high\"");
	CHECK(blkin_init_integer_annotation(&annotation, "depth", 16, &here) == 0);
	CHECK(annotation.type == ANNOT_INTEGER && annotation.val_int == 16);
	CHECK(blkin_record(&child, &annotation) == 0);
	expect("zipkin:keyval_integer", &child, &here, "key = \"depth\", val = 16");

	/* Wire format. */
	CHECK(blkin_get_trace_info(&child, &info) == 0);
	CHECK(sizeof packed == 24 && blkin_pack_trace_info(&info, &packed) == 0);
	for (int each = 0; each < 8; each++)
		CHECK(bytes[each] == (unsigned char) ((uint64_t) info.trace_id >> (56 - 8 * each)));
	CHECK(blkin_unpack_trace_info(&packed, &unpacked) == 0 && !memcmp(&info, &unpacked, sizeof info));
	CHECK(blkin_init_child_info(&remote, &unpacked, &there, "answer") == 0);
	CHECK(remote.info.trace_id == info.trace_id && remote.info.parent_span_id == info.span_id);
	BLKIN_TIMESTAMP(&remote, &there, SERVER_RECV);
	expect_event(&remote, &there, "sr");
	CHECK(blkin_set_trace_properties(&same, &unpacked, "again", &there) == 0);
	CHECK(!strcmp(same.name, "again") && same.info.span_id == info.span_id);
	BLKIN_TIMESTAMP(&same, NULL, "same");
	expect_event(&same, &there, "same");
	CHECK(blkin_init_trace_info(&info) == 0 && info.trace_id && !info.parent_span_id);
	info.parent_span_id = 7;
	CHECK(blkin_set_trace_info(&same, &info) == 0 && same.info.trace_id == info.trace_id);
	BLKIN_TIMESTAMP(&same, NULL, "other");
	expect_event(&same, &there, "other");

	/* A null argument is an error and emits nothing. */
	CHECK(blkin_record(NULL, &annotation) == -EINVAL && blkin_record(&root, NULL) == -EINVAL);
	CHECK(blkin_init_new_trace(NULL, "", &here) < 0 && blkin_init_child(&child, NULL, &here, "") < 0);
	CHECK(blkin_init_child_info(NULL, &info, &here, "") < 0 && blkin_init_endpoint(NULL, "", 0, "") < 0);
	CHECK(blkin_init_string_annotation(&annotation, NULL, "", &here) < 0);
	CHECK(blkin_init_integer_annotation(NULL, "", 0, &here) < 0);
	CHECK(blkin_init_timestamp_annotation(&annotation, NULL, &here) < 0);
	CHECK(blkin_get_trace_info(NULL, &info) < 0 && blkin_set_trace_info(NULL, &info) < 0);
	CHECK(blkin_set_trace_properties(NULL, &info, "", &here) < 0);
	CHECK(blkin_pack_trace_info(NULL, &packed) < 0 && blkin_unpack_trace_info(NULL, &info) < 0);
	CHECK(blkin_init_trace_info(NULL) < 0);
	memset(&same.info, 0, sizeof same.info);
	BLKIN_TIMESTAMP(&same, NULL, "no trace");
	return 0;
}
