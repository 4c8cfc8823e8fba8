/*
 * Calls every function of <blkkin/ust.h>, and prints the events that a reader of the trace must
 * find, as blkin.c.
 */
#include <blkkin/ust.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)							\
	do {									\
		if (!(condition)) {						\
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);	\
			return 1;						\
		}								\
	} while (0)

static void expect_begin(const struct blkkin_span *span, int kind, int on, const char *name, const char *service)
{
	const struct blkkin_context context = blkkin_context_of(span), *c = &context;

	printf("blkkin:begin { trace_hi = %" PRIu64 ", trace_lo = %" PRIu64 ", span = %" PRIu64 ", parent = %" PRIu64
	       ", kind = %d, on = %d, sampled_per_million = 1000000, name = \"%s\", service = \"%s\" }\n",
	       c->trace_hi, c->trace_lo, c->span, c->parent, kind, on, name, service);
}

static int same(const struct blkkin_context *a, const struct blkkin_context *b)
{
	return a->trace_hi == b->trace_hi && a->trace_lo == b->trace_lo && a->span == b->span && a->parent == b->parent &&
	       a->sampled == b->sampled;
}

int main(void)
{
	struct blkkin_span off, never, root, child, remote, late_child;
	struct blkkin_sequence sequence = BLKKIN_SEQUENCE_INIT;
	struct blkkin_options options = { .roots_per_second = BLKKIN_ALL_ROOTS };
	struct blkkin_context context, back, never_context;
	unsigned char bytes[24];
	char text[56];

	/* Before init() nothing is emitted, and a remote context is propagated. */
	CHECK(!blkkin_from_traceparent(&context, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
	blkkin_begin_continued(&off, &context, BLKKIN_SERVER, "x", "s", BLKKIN_SCOPED);
	CHECK(!blkkin_enabled() && !blkkin_is_recording(&off) && same(&off.context, &context));
	blkkin_text(&off, "k", "v");
	blkkin_end(&off);
	blkkin_begin_root(&never, BLKKIN_SERVER, "x", "s", BLKKIN_SCOPED);
	never_context = blkkin_context_of(&never);

	CHECK(blkkin_init(&options) == 0 && blkkin_init(NULL) == 0 && !*blkkin_init_error());
	CHECK(blkkin_enabled() && blkkin_time_to_enabled_ns() > 0 && blkkin_seen_enabled() == 0);

	blkkin_begin_root(&root, BLKKIN_SERVER, "READ", "nbd", BLKKIN_SCOPED);
	CHECK(blkkin_is_recording(&root) && root.context.sampled && !root.context.trace_hi);
	expect_begin(&root, 1, 1, "READ", "nbd");
	blkkin_begin_child(&child, &root, BLKKIN_INTERNAL, "queue", BLKKIN_DETACHED);
	CHECK(child.context.trace_lo == root.context.trace_lo && child.context.parent == root.context.span);
	expect_begin(&child, 0, 0, "queue", "nbd");
	blkkin_enter(&child);
	printf("blkkin:enter { span = %" PRIu64 " }\n", child.context.span);
	blkkin_event(&child, "taken");
	printf("blkkin:event { span = %" PRIu64 ", name = \"taken\" }\n", child.context.span);
	blkkin_text(&child, "path", "/a\tb");
	printf("blkkin:text { span = %" PRIu64 ", key = \"path\", val = \"/a\\tb\" }\n", child.context.span);
	blkkin_text(&child, "nothing", NULL);
	printf("blkkin:text { span = %" PRIu64 ", key = \"nothing\", val = \"\" }\n", child.context.span);
	blkkin_number(&child, "offset", -1);
	printf("blkkin:number { span = %" PRIu64 ", key = \"offset\", val = -1 }\n", child.context.span);
	blkkin_leave(&child);
	printf("blkkin:leave { span = %" PRIu64 " }\n", child.context.span);
	blkkin_rpc_endpoint(&root, BLKKIN_RPC_SERVER, "nbd", "unix:1-unix:2", UINT64_MAX, true);
	printf("blkkin:rpc_endpoint { span = %" PRIu64 ", side = 1, unique = 1, protocol = \"nbd\", connection = \"unix:1-unix:2\", "
	       "cookie = 18446744073709551615 }\n",
	       root.context.span);
	blkkin_fail(&child, 5);
	printf("blkkin:end { span = %" PRIu64 ", status = 5 }\n", child.context.span);
	blkkin_end(&child);
	blkkin_end(&child);
	printf("blkkin:end { span = %" PRIu64 ", status = 0 }\n", root.context.span);
	blkkin_end(&root);

	/* Both wire formats. */
	CHECK(!blkkin_to_blkin(&root.context, bytes) && !blkkin_from_blkin(&back, bytes));
	CHECK(same(&back, &root.context));
	CHECK(!blkkin_to_traceparent(&root.context, text) && strlen(text) == 55);
	CHECK(!blkkin_from_traceparent(&back, text) && back.span == root.context.span && back.sampled);
	blkkin_begin_continued(&remote, &back, BLKKIN_CLIENT, "below", "other", BLKKIN_DETACHED);
	CHECK(remote.context.parent == root.context.span && remote.context.trace_lo == root.context.trace_lo);
	expect_begin(&remote, 2, 0, "below", "other");
	printf("blkkin:end { span = %" PRIu64 ", status = 0 }\n", remote.context.span);
	blkkin_end(&remote);

	/* The upper half of a trace id is kept, and has no packed form. */
	blkkin_begin_continued(&remote, &context, BLKKIN_SERVER, "wide", "other", BLKKIN_DETACHED);
	CHECK(remote.context.trace_hi == context.trace_hi && blkkin_to_blkin(&remote.context, bytes));
	expect_begin(&remote, 1, 0, "wide", "other");
	printf("blkkin:end { span = %" PRIu64 ", status = 0 }\n", remote.context.span);
	blkkin_end(&remote);

	/* A trace that is not sampled remotely is not recorded here, nor are its children. */
	context.sampled = false;
	blkkin_begin_continued(&remote, &context, BLKKIN_SERVER, "x", "s", BLKKIN_SCOPED);
	blkkin_begin_child(&child, &remote, BLKKIN_INTERNAL, "y", BLKKIN_SCOPED);
	CHECK(!blkkin_is_recording(&remote) && !blkkin_is_recording(&child));
	CHECK(!blkkin_to_traceparent(&child.context, text) && !strcmp(text + 52, "-00"));
	blkkin_end(&child);
	blkkin_end(&remote);

	/* The child of a span that began while no session recorded is a root. */
	memset(&context, 0, sizeof context);
	CHECK(same(&never_context, &context));
	blkkin_begin_child(&late_child, &never, BLKKIN_SERVER, "late", BLKKIN_DETACHED);
	CHECK(blkkin_is_recording(&late_child) && !late_child.context.parent);
	expect_begin(&late_child, 1, 0, "late", "s");
	printf("blkkin:end { span = %" PRIu64 ", status = 0 }\n", late_child.context.span);
	blkkin_end(&late_child);

	CHECK(blkkin_from_traceparent(&context, "00-00000000000000000000000000000000-00f067aa0ba902b7-01"));
	CHECK(blkkin_from_traceparent(&context, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x"));
	CHECK(blkkin_from_traceparent(&context, "") && !context.span);
	/* The thread works for one span after another. */
	blkkin_begin_root(&root, BLKKIN_SERVER, "READ", "nbd", BLKKIN_DETACHED);
	expect_begin(&root, 1, 0, "READ", "nbd");
	blkkin_begin_root(&child, BLKKIN_SERVER, "WRITE", "nbd", BLKKIN_DETACHED);
	expect_begin(&child, 1, 0, "WRITE", "nbd");
	blkkin_sequence_enter(&sequence, &root);
	printf("blkkin:enter { span = %" PRIu64 " }\n", root.context.span);
	blkkin_sequence_enter(&sequence, &child);
	printf("blkkin:switch_span { left = %" PRIu64 ", span = %" PRIu64 " }\n", root.context.span, child.context.span);
	blkkin_sequence_exit(&sequence);
	printf("blkkin:leave { span = %" PRIu64 " }\n", child.context.span);
	printf("blkkin:end { span = %" PRIu64 ", status = 0 }\n", root.context.span);
	blkkin_end(&root);
	printf("blkkin:end { span = %" PRIu64 ", status = 0 }\n", child.context.span);
	blkkin_end(&child);
	CHECK(blkkin_seen_enabled() == 24);
	return 0;
}
