/*
 * Thread contexts of a C program, read through the symbol that the dynamic loader resolves.
 *
 * thread_context LIBRARY: LIBRARY is a second copy of libblkkin-ust. Prints the status of
 * publishing, and exits with 0 if the slot has the expected content.
 */
#define _GNU_SOURCE
#include <blkkin/ust.h>

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)							\
	do {									\
		if (!(condition)) {						\
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);	\
			exit(1);						\
		}								\
	} while (0)

struct record {
	unsigned char trace[16], span[8], valid, flags;
	uint16_t bytes;
	unsigned char entries[BLKKIN_THREAD_ATTRIBUTES_BYTES];
};

#ifdef ALREADY_PUBLISHED
/* Symbol of another library. */
__attribute__((visibility("default"))) __thread struct record *otel_thread_ctx_v1;
#endif

static struct record *record(void)
{
	static void *slot;
	struct record **variable;

	if (!slot)
		slot = dlopen("blkkin-thread-slot.so.1", RTLD_NOW | RTLD_NOLOAD);
	CHECK(slot);
	variable = dlsym(slot, "otel_thread_ctx_v1");
	CHECK(variable);
	return *(struct record *volatile *) variable;
}

/* Returns the id of the published span, or 0. */
static uint64_t published_span(void)
{
	struct record *now = record();
	uint64_t high, low, span;

	if (!now || now->valid != 1)
		return 0;
	memcpy(&high, now->trace, 8);
	memcpy(&low, now->trace + 8, 8);
	memcpy(&span, now->span, 8);
	CHECK(high == ~span && low == span && now->flags == (be64toh(span) & 1));
	return be64toh(span);
}

/* Returns whether this thread publishes this span with these attributes. */
static bool has_attributes(uint64_t span, const char *bytes, size_t size)
{
	return published_span() == span && record()->bytes == size && !memcmp(record()->entries, bytes, size);
}

static struct blkkin_span span(uint64_t number, enum blkkin_scope scope)
{
	struct blkkin_context context = { ~number, number, number, 0, number & 1 };
	struct blkkin_span span;

	blkkin_begin_continued(&span, &context, BLKKIN_SERVER, "x", "s", scope);
	return span;
}

static void thread_attributes(void)
{
	struct blkkin_span outer = span(5, BLKKIN_SCOPED), inner = span(6, BLKKIN_DETACHED), none;
	struct blkkin_thread_attributes attributes = { 0 }, full = { 0 };
	char longest[BLKKIN_THREAD_ATTRIBUTES_BYTES - 1];
	int route = blkkin_thread_key("http.route"), user = blkkin_thread_key("user.id");

	CHECK(route == 0 && user == 1 && blkkin_thread_key("http.route") == route);
	CHECK(blkkin_thread_key("") == -EINVAL);
	CHECK(has_attributes(5, "", 0));
	blkkin_add_thread_attribute(&attributes, user, "old");
	blkkin_add_thread_attribute(&attributes, route, "/buy");
	blkkin_add_thread_attribute(&attributes, user, "7");
	blkkin_set_thread_attributes(&outer, &attributes);
	CHECK(has_attributes(5, "\0\4/buy\1\0017", 9));
	blkkin_enter(&inner);
	CHECK(has_attributes(6, "", 0));
	/* Set for the outer span. */
	blkkin_add_thread_attribute(&attributes, user, "8");
	blkkin_set_thread_attributes(&outer, &attributes);
	CHECK(has_attributes(6, "", 0));
	blkkin_begin_root(&none, BLKKIN_SERVER, "x", "s", BLKKIN_SCOPED);
	blkkin_set_thread_attributes(&none, &attributes);
	CHECK(published_span() == 0);
	blkkin_end(&none);
	blkkin_leave(&inner);
	CHECK(has_attributes(5, "\0\4/buy\1\0018", 9));
	/* A value that does not fit is dropped, with the previous value of its key. */
	memset(longest, 'x', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	blkkin_add_thread_attribute(&full, route, longest);
	CHECK(full.bytes == BLKKIN_THREAD_ATTRIBUTES_BYTES && !full.dropped_attributes_count);
	blkkin_set_thread_attributes(&outer, &full);
	CHECK(published_span() == 5 && record()->bytes == BLKKIN_THREAD_ATTRIBUTES_BYTES);
	blkkin_add_thread_attribute(&attributes, user, longest);
	blkkin_add_thread_attribute(&attributes, -EBUSY, "nameless");
	CHECK(attributes.bytes == 6 && attributes.dropped_attributes_count == 2);
	blkkin_end(&outer);
	outer = span(9, BLKKIN_SCOPED);
	CHECK(has_attributes(9, "", 0));
	blkkin_end(&outer);
}

static void *other_thread(void *of_all)
{
	struct blkkin_span *both = of_all;

	CHECK(published_span() == 0);
	blkkin_enter(both);
	CHECK(published_span() == 8);
	return NULL;
}

static void scoped_spans(void)
{
	struct blkkin_span outer = span(5, BLKKIN_SCOPED), none, inner;

	CHECK(published_span() == 5);
	blkkin_begin_root(&none, BLKKIN_SERVER, "x", "s", BLKKIN_SCOPED);
	CHECK(published_span() == 0);
	inner = none;
	blkkin_end(&inner);
	CHECK(published_span() == 5);
	blkkin_begin_child(&inner, &outer, BLKKIN_INTERNAL, "y", BLKKIN_SCOPED);
	CHECK(published_span() == 5);
	blkkin_end(&inner);
	CHECK(published_span() == 5);
	blkkin_end(&outer);
	CHECK(published_span() == 0);
	blkkin_end(&outer);
}

static void deep_nesting(void)
{
	enum { DEEP = 20 };
	struct blkkin_span spans[DEEP];
	int each;

	for (each = 0; each < DEEP; each++) {
		spans[each] = span((uint64_t) each + 1, BLKKIN_DETACHED);
		blkkin_enter(&spans[each]);
		CHECK(published_span() == (each < 16 ? (uint64_t) each + 1 : 0));
	}
	for (; each; each--) {
		CHECK(published_span() == (each <= 16 ? (uint64_t) each : 0));
		blkkin_leave(&spans[each - 1]);
	}
	CHECK(published_span() == 0);
}

/* Both copies of the library share the slot. */
static void second_copy(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*publishing)(void);
	int (*init)(const struct blkkin_options *options);
	void (*publish)(uint64_t key, const struct blkkin_context *context);
	void (*unpublish)(uint64_t key);
	struct blkkin_context context = { ~(uint64_t) 12, 12, 12, 0, false };
	struct blkkin_span outer = span(11, BLKKIN_DETACHED);

	CHECK(library);
	*(void **) &publishing = dlsym(library, "blkkin_publishing");
	*(void **) &init = dlsym(library, "blkkin_init");
	*(void **) &publish = dlsym(library, "blkkin_ust_publish");
	*(void **) &unpublish = dlsym(library, "blkkin_ust_unpublish");
	CHECK(publishing() != 0 && publish != blkkin_ust_publish);
	init(NULL);
	CHECK(publishing() == 0);
	blkkin_enter(&outer);
	publish(12, &context);
	CHECK(published_span() == 12);
	unpublish(12);
	CHECK(published_span() == 11);
	blkkin_leave(&outer);
	CHECK(published_span() == 0);
}

int main(int count, char **args)
{
	struct blkkin_span one, two, none, early = span(1, BLKKIN_DETACHED);
	struct blkkin_options options = { 0 };
	pthread_t thread;

	CHECK(count == 2 && blkkin_publishing() < 0);
	blkkin_enter(&early);
	options.no_thread_context = getenv("NO_THREAD_CONTEXT") != NULL;
	blkkin_init(&options);
	printf("%d %s\n", blkkin_publishing(), blkkin_publishing_error());
	if (blkkin_publishing())
		return 0;
	CHECK(!blkkin_enabled() && published_span() == 0);
	blkkin_leave(&early);
	one = span(7, BLKKIN_DETACHED);
	two = span(8, BLKKIN_DETACHED);
	blkkin_begin_root(&none, BLKKIN_SERVER, "x", "s", BLKKIN_DETACHED);
	blkkin_enter(&one);
	CHECK(published_span() == 7);
	blkkin_enter(&two);
	CHECK(published_span() == 8);
	CHECK(!pthread_create(&thread, NULL, other_thread, &two) && !pthread_join(thread, NULL));
	blkkin_enter(&none);
	CHECK(published_span() == 0);
	blkkin_leave(&none);
	CHECK(published_span() == 8);
	blkkin_leave(&two);
	CHECK(published_span() == 7);
	/* Leaving the outer span also leaves the inner one. */
	blkkin_enter(&two);
	blkkin_leave(&one);
	CHECK(published_span() == 0);
	blkkin_leave(&two);
	CHECK(published_span() == 0);
	scoped_spans();
	thread_attributes();
	deep_nesting();
	second_copy(args[1]);
	return 0;
}
