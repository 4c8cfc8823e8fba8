/*
 * Batches and sequential spans: several items in one event, and changes of a thread's current span.
 * `src/batch.rs` and `src/sequential.rs` have the same rules with their reasons, and the README the
 * format of the words.
 */
#include <string.h>

#include "internal.h"

#define WORDS_MAX (sizeof ((struct blkkin_batch *) 0)->words / sizeof(uint64_t))
#define NAMES_MAX (sizeof ((struct blkkin_batch *) 0)->names / sizeof(const char *))
/*
 * Maximum words of one item without its strings, and maximum bytes of a string. An item with a
 * longer string is emitted as a separate event.
 */
#define ITEM_WORDS_MAX 7
#define NAME_BYTES_MAX 512

/* Bits of a number that fits into its head. */
#define SMALL_BITS 48

enum { NAME = 1, BEGIN, SPAN, NUMBER, TEXT, EVENT, RPC_ENDPOINT, END, SMALL_NUMBER, ENDS };

static const struct blkkin_probe *current_probe(void)
{
	return __atomic_load_n(&blkkin_ust_probe, __ATOMIC_ACQUIRE);
}

static bool has(const struct blkkin_probe *probe, enum blkkin_event event)
{
	return probe && __atomic_load_n(probe->state[event], __ATOMIC_RELAXED) != 0;
}

static void push(struct blkkin_batch *batch, uint64_t word)
{
	batch->words[batch->length++] = word;
	batch->last_ends = WORDS_MAX;
}

/* Finds the number of a string by its address. NULL has number 0, which is not used. */
static bool find_name(struct blkkin_batch *batch, const char *name, uint64_t *number)
{
	uint32_t index = batch->next_name;

	*number = 0;
	if (!name)
		return true;
	/* Items of several spans usually repeat their keys in the same order. */
	if (index >= batch->names_count || batch->names[index] != name)
		for (index = 0; index < batch->names_count && batch->names[index] != name; index++)
			;
	if (index == batch->names_count)
		return false;
	batch->next_name = index + 1;
	*number = index;
	return true;
}

/* Adds a name item, and returns the string's number. */
static uint64_t define_name(struct blkkin_batch *batch, const char *name, size_t bytes)
{
	uint64_t number = batch->names_count, word;
	size_t at, part;

	batch->names[batch->names_count++] = name;
	batch->next_name = batch->names_count;
	push(batch, NAME | number << 8 | (uint64_t) bytes << 16);
	for (at = 0; at < bytes; at += 8) {
		word = 0;
		for (part = 0; part < 8 && at + part < bytes; part++)
			word |= (uint64_t) (unsigned char) name[at + part] << 8 * part;
		push(batch, word);
	}
	return number;
}

static bool reserve_slow(struct blkkin_batch *batch, const char *names[2], uint64_t numbers[2])
{
	size_t bytes[2], words_max = ITEM_WORDS_MAX;
	int each;

	for (each = 0; each < 2; each++) {
		bytes[each] = names[each] ? strlen(names[each]) : 0;
		words_max += 1 + (bytes[each] + 7) / 8;
	}
	if (!has(current_probe(), BLKKIN_TOGETHER) || bytes[0] > NAME_BYTES_MAX || bytes[1] > NAME_BYTES_MAX) {
		blkkin_batch_flush(batch);
		return false;
	}
	if (batch->length + words_max > WORDS_MAX || batch->names_count + 2 > NAMES_MAX)
		blkkin_batch_flush(batch);
	for (each = 0; each < 2; each++)
		if (!find_name(batch, names[each], &numbers[each]))
			numbers[each] = define_name(batch, names[each], bytes[each]);
	return true;
}

/*
 * Reserves space for an item with up to two strings, and returns their numbers. Returns false if
 * the item needs a separate event. The batch is then flushed.
 */
static bool reserve(struct blkkin_batch *batch, const char *first, const char *second, uint64_t numbers[2])
{
	const char *names[2] = { first, second };

	/*
	 * The session is checked once per event: if it disables the event later, it loses these
	 * items as any other.
	 */
	if (batch->length && batch->length + ITEM_WORDS_MAX <= WORDS_MAX && find_name(batch, first, &numbers[0]) &&
	    find_name(batch, second, &numbers[1]))
		return true;
	return reserve_slow(batch, names, numbers);
}

/* Reserves space for an item of a span, and returns the numbers of its strings. */
static bool select_span(struct blkkin_batch *batch, const struct blkkin_span *span, const char *first, const char *second,
			uint64_t numbers[2])
{
	if (!reserve(batch, first, second, numbers))
		return false;
	if (batch->current_span != span->context.span) {
		push(batch, SPAN);
		push(batch, span->context.span);
		batch->current_span = span->context.span;
	}
	return true;
}

/* Replaces a null pointer, which LTTng would write as "(null)". */
static const char *non_null(const char *text)
{
	return text ? text : "";
}

void blkkin_ust_batch_begin(struct blkkin_batch *batch, struct blkkin_span *span, uint32_t kept_per_million,
			    enum blkkin_kind kind, const char *name)
{
	const struct blkkin_probe *probe = current_probe();
	const struct blkkin_context *context = &span->context;
	uint64_t numbers[2], wide, has_parent, is_own_trace;

	if (!probe || !blkkin_assign_ids(probe, span, kept_per_million))
		return;
	if (!reserve(batch, non_null(name), non_null(span->service), numbers)) {
		blkkin_emit_begin(probe, span, kind, name, BLKKIN_DETACHED);
		return;
	}
	wide = context->trace_hi != 0;
	has_parent = context->parent != 0;
	is_own_trace = context->trace_lo == context->span;
	push(batch, BEGIN | (uint64_t) kind << 8 | (wide | has_parent << 1 | is_own_trace << 2) << 12 | numbers[0] << 16 |
	     numbers[1] << 24 | (uint64_t) span->kept_per_million << 32);
	push(batch, context->span);
	if (!is_own_trace)
		push(batch, context->trace_lo);
	if (wide)
		push(batch, context->trace_hi);
	if (has_parent)
		push(batch, context->parent);
	batch->current_span = context->span;
}

void blkkin_ust_batch_number(struct blkkin_batch *batch, const struct blkkin_span *span, const char *key,
			     int64_t val)
{
	uint64_t numbers[2];

	if (!select_span(batch, span, non_null(key), NULL, numbers)) {
		blkkin_ust_number(span->context.span, key, val);
		return;
	}
	if (val >= -(INT64_C(1) << (SMALL_BITS - 1)) && val < INT64_C(1) << (SMALL_BITS - 1)) {
		push(batch, SMALL_NUMBER | numbers[0] << 8 | (uint64_t) val << 16);
		return;
	}
	push(batch, NUMBER | numbers[0] << 8);
	push(batch, (uint64_t) val);
}

void blkkin_ust_batch_text(struct blkkin_batch *batch, const struct blkkin_span *span, const char *key,
			   const char *val)
{
	uint64_t numbers[2];

	if (!select_span(batch, span, non_null(key), non_null(val), numbers)) {
		blkkin_ust_text(span->context.span, key, val);
		return;
	}
	push(batch, TEXT | numbers[0] << 8 | numbers[1] << 16);
	/* Another value may be at the same address by the next call. */
	batch->names[numbers[1]] = NULL;
}

void blkkin_ust_batch_event(struct blkkin_batch *batch, const struct blkkin_span *span, const char *name)
{
	uint64_t numbers[2];

	if (!select_span(batch, span, non_null(name), NULL, numbers)) {
		blkkin_ust_event(span->context.span, name);
		return;
	}
	push(batch, EVENT | numbers[0] << 8);
}

void blkkin_ust_batch_rpc_endpoint(struct blkkin_batch *batch, const struct blkkin_span *span, enum blkkin_rpc_side side,
				   const char *rule, const char *connection, uint64_t cookie, bool unique)
{
	uint64_t numbers[2], flags = (side == BLKKIN_RPC_SERVER) | (uint64_t) unique << 1;

	if (!select_span(batch, span, non_null(rule), non_null(connection), numbers)) {
		blkkin_ust_rpc_endpoint(span->context.span, side, unique, rule, connection, cookie);
		return;
	}
	if (cookie <= UINT32_MAX) {
		push(batch, RPC_ENDPOINT | (flags | 4) << 8 | numbers[0] << 16 | numbers[1] << 24 | cookie << 32);
		return;
	}
	push(batch, RPC_ENDPOINT | flags << 8 | numbers[0] << 16 | numbers[1] << 24);
	push(batch, cookie);
}

/* Adds an end. blkkin_end() follows, and emits it if this did not. */
void blkkin_ust_batch_end(struct blkkin_batch *batch, struct blkkin_span *span)
{
	uint64_t numbers[2];
	uint32_t ends;

	if (!reserve(batch, NULL, NULL, numbers))
		return;
	/* Reserving may have flushed the batch. */
	ends = batch->last_ends;
	if (span->status) {
		push(batch, END | (uint64_t) (uint32_t) span->status << 32);
		ends = WORDS_MAX;
	} else if (ends < WORDS_MAX) {
		batch->words[ends] += UINT64_C(1) << 8;
	} else {
		ends = batch->length;
		push(batch, ENDS | UINT64_C(1) << 8);
	}
	push(batch, span->context.span);
	batch->last_ends = ends;
	blkkin_ust_unpublish(span->context.span);
	span->kept_per_million = BLKKIN_PROPAGATES;
}

void blkkin_ust_batch_flush(struct blkkin_batch *batch)
{
	const struct blkkin_probe *probe = current_probe();

	if (probe)
		probe->together(batch->words, (uint16_t) batch->length);
	blkkin_batch_init(batch);
}

/*
 * Emits that this thread left one span and entered another; 0 is no span. Each session receives it
 * by the events that it has enabled: see `Table::emit_switch` in `src/probe.rs`.
 */
void blkkin_ust_turn(uint64_t left, uint64_t span)
{
	const struct blkkin_probe *probe = current_probe();

	if (!probe)
		return;
	if (left && span && has(probe, BLKKIN_TURN)) {
		probe->turn(left, span);
	} else {
		if (left)
			probe->leave(left);
		if (span)
			probe->enter(span);
	}
	if (__atomic_load_n(&blkkin_ust_publishes, __ATOMIC_RELAXED))
		return;
	if (left)
		probe->unseen_leave(left);
	if (span)
		probe->unseen_enter(span);
}
