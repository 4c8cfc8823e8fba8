/*
 * OpenTelemetry's thread context (OTEP 4947): the thread's slot points to a record of the innermost
 * span that the thread has entered and not left, or to nothing. `src/thread_context.rs` has the
 * same rules with their reasons.
 */
#define _GNU_SOURCE
#include "thread_context.h"

#include <blkkin/ust.h>

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ids.h"
#include "internal.h"

/* Maximum entered spans of a thread. A span that is entered deeper hides them. */
#define DEPTH_MAX 16

enum { OFF, IDLE, USED };

/* Record of OTEP 4947; its words are big-endian. */
struct record {
	uint64_t trace[2], span;
	uint8_t valid, flags;
	uint16_t attributes_bytes;
	unsigned char attributes[BLKKIN_THREAD_ATTRIBUTES_BYTES];
};

_Static_assert(offsetof(struct record, attributes) == 28 && sizeof(struct record) == 256, "the layout of OTEP 4947");

struct entry {
	struct record record;
	/* Key by which it is left; previous value of the slot. */
	uint64_t key;
	void *before;
};

unsigned char blkkin_ust_publishes;

static void **(*slot_of)(void);
static __thread void *volatile *slot;
/*
 * Number of entered spans. The first DEPTH_MAX have records, and the next entry keeps the slot's
 * previous value.
 */
static __thread volatile size_t depth;
static __thread volatile struct entry entries[DEPTH_MAX + 1];

/* Keeps the program order of writes for a reader on the same CPU. */
#define COMPILER_BARRIER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

static bool is_none(const struct blkkin_context *context)
{
	return !context || !context->span || (!context->trace_hi && !context->trace_lo);
}

/* Out of line, because it runs once per thread. */
static __attribute__((noinline, cold)) void find_slot(void)
{
	slot = (void *volatile *) slot_of();
}

void blkkin_ust_publish(uint64_t key, const struct blkkin_context *context)
{
	const bool none = is_none(context);
	volatile struct entry *entry;
	size_t at;

	if (!none)
		__atomic_store_n(&blkkin_ust_publishes, USED, __ATOMIC_RELAXED);
	else if (__atomic_load_n(&blkkin_ust_publishes, __ATOMIC_RELAXED) != USED)
		return;
	if (!slot)
		find_slot();
	at = depth;
	/* First, so that a signal handler uses the next entry. */
	depth = at + 1;
	COMPILER_BARRIER();
	if (at > DEPTH_MAX)
		return;
	entry = &entries[at];
	entry->record.valid = 0;
	COMPILER_BARRIER();
	entry->key = key;
	entry->before = *slot;
	if (none || at == DEPTH_MAX) {
		*slot = NULL;
		return;
	}
	entry->record.trace[0] = htobe64(context->trace_hi);
	entry->record.trace[1] = htobe64(context->trace_lo);
	entry->record.span = htobe64(context->span);
	entry->record.flags = context->sampled;
	entry->record.attributes_bytes = 0;
	COMPILER_BARRIER();
	entry->record.valid = 1;
	COMPILER_BARRIER();
	*slot = (void *) &entry->record;
}

void blkkin_ust_unpublish(uint64_t key)
{
	const size_t entered = depth, kept = entered < DEPTH_MAX + 1 ? entered : DEPTH_MAX + 1;
	size_t left = kept, each;
	void *before;

	while (left && entries[left - 1].key != key)
		left--;
	if (left) {
		before = entries[--left].before;
	} else if (entered > kept) {
		/* One of the spans without an entry. They are interchangeable. */
		depth = entered - 1;
		return;
	} else {
		return;
	}
	/* A left record becomes invalid, even if another one still refers to it. */
	for (each = left; each < kept; each++)
		entries[each].record.valid = 0;
	COMPILER_BARRIER();
	depth = left;
	COMPILER_BARRIER();
	*slot = before;
}

void blkkin_ust_set_thread_attributes(uint64_t key, const struct blkkin_thread_attributes *attributes)
{
	const size_t entered = depth, kept = entered < DEPTH_MAX ? entered : DEPTH_MAX;
	size_t at = kept, each;
	volatile struct record *record;

	while (at && entries[at - 1].key != key)
		at--;
	if (!at || !entries[at - 1].record.valid)
		return;
	record = &entries[at - 1].record;
	record->valid = 0;
	COMPILER_BARRIER();
	for (each = 0; each < attributes->bytes; each++)
		record->attributes[each] = attributes->entries[each];
	record->attributes_bytes = attributes->bytes;
	COMPILER_BARRIER();
	record->valid = 1;
}

void blkkin_add_thread_attribute(struct blkkin_thread_attributes *attributes, int key, const char *value)
{
	const size_t length = strlen(value);
	size_t at = 0, size;

	/* A key occurs once: its previous value is removed, even if the new one does not fit. */
	for (; at + 2 <= attributes->bytes; at += size) {
		size = 2u + attributes->entries[at + 1];
		if (attributes->entries[at] != key)
			continue;
		memmove(attributes->entries + at, attributes->entries + at + size, attributes->bytes - at - size);
		attributes->bytes = (uint16_t) (attributes->bytes - size);
		break;
	}
	if (key < 0 || key > 255 || length > 255 || attributes->bytes + 2 + length > sizeof attributes->entries) {
		attributes->dropped_attributes_count++;
		return;
	}
	attributes->entries[attributes->bytes] = (unsigned char) key;
	attributes->entries[attributes->bytes + 1] = (unsigned char) length;
	memcpy(attributes->entries + attributes->bytes + 2, value, length);
	attributes->bytes = (uint16_t) (attributes->bytes + 2 + length);
}

uint64_t blkkin_ust_publish_scoped(const struct blkkin_span *span)
{
	const struct blkkin_context context = blkkin_context_of(span);
	/* The span may be copied until it ends, so its address cannot be the key. */
	uint64_t key = is_none(&context) ? blkkin_fresh_id() : context.span;

	blkkin_ust_publish(key, &context);
	return key;
}

int blkkin_start_publishing(bool wanted, int (*load)(const char *name, const unsigned char *bytes, size_t size, void **handle,
						     char *why, size_t room),
			    char *why, size_t room)
{
	const char *enabled = getenv("BLKKIN_UST_CONTEXT");
	size_t size = (size_t) (blkkin_slot_bytes_end - blkkin_slot_bytes);
	void *handle, *function;
	int error;

	if (!wanted || (enabled && !strcmp(enabled, "0"))) {
		snprintf(why, room, "switched off by BLKKIN_UST_CONTEXT=0 or by an option");
		return -ECANCELED;
	}
	/* All copies of this library in the process use the first one's slot. */
	handle = dlopen("blkkin-thread-slot.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!handle) {
		if (dlsym(RTLD_DEFAULT, "otel_thread_ctx_v1")) {
			snprintf(why, room, "another library of this process publishes otel_thread_ctx_v1");
			return -EBUSY;
		}
		if (!size) {
			snprintf(why, room, "built without it");
			return -ENOSYS;
		}
		error = load("blkkin-slot", blkkin_slot_bytes, size, &handle, why, room);
		if (error)
			return error;
	}
	function = dlsym(handle, "blkkin_thread_slot");
	if (!function) {
		snprintf(why, room, "the slot that is loaded is not ours");
		return -ELIBACC;
	}
	memcpy(&slot_of, &function, sizeof function);
	__atomic_store_n(&blkkin_ust_publishes, IDLE, __ATOMIC_RELEASE);
	return 0;
}
