/*
 * Several things in one event, and a thread that turns from one span to the next: `src/together.rs` and `src/turns.rs` have the same, and
 * say why. The README has the form of the words.
 */
#include <string.h>

#include "internal.h"

#define WORDS_MAX (sizeof ((struct blkkin_together *) 0)->words / sizeof(uint64_t))
#define NAMES_MAX (sizeof ((struct blkkin_together *) 0)->names / sizeof(const char *))
/* Words of one thing at the most, without its strings; bytes of a string: a longer one is said by an event of its own. */
#define HEAD_MAX 7
#define NAME_MAX 512

/* Bits of a number that its head has room for. */
#define SMALL_BITS 48

enum { NAME = 1, BEGIN, ABOUT, NUMBER, TEXT, EVENT, MEETING, END, SMALL, ENDS };

static const struct blkkin_probe *the_probe(void)
{
	return __atomic_load_n(&blkkin_ust_probe, __ATOMIC_ACQUIRE);
}

static bool has(const struct blkkin_probe *probe, enum blkkin_event event)
{
	return probe && __atomic_load_n(probe->state[event], __ATOMIC_RELAXED) != 0;
}

static void put(struct blkkin_together *together, uint64_t word)
{
	together->words[together->length++] = word;
	together->ends = WORDS_MAX;
}

/* The number of a string that has one; of none, any. */
static bool known(struct blkkin_together *together, const char *name, uint64_t *number)
{
	uint32_t place = together->next;

	*number = 0;
	if (!name)
		return true;
	/* Who says the same of many says it in one order. */
	if (place >= together->named || together->names[place] != name)
		for (place = 0; place < together->named && together->names[place] != name; place++)
			;
	if (place == together->named)
		return false;
	together->next = place + 1;
	*number = place;
	return true;
}

/* Says a string, which has a number from now on. */
static uint64_t named(struct blkkin_together *together, const char *name, size_t bytes)
{
	uint64_t number = together->named, word;
	size_t at, part;

	together->names[together->named++] = name;
	together->next = together->named;
	put(together, NAME | number << 8 | (uint64_t) bytes << 16);
	for (at = 0; at < bytes; at += 8) {
		word = 0;
		for (part = 0; part < 8 && at + part < bytes; part++)
			word |= (uint64_t) (unsigned char) name[at + part] << 8 * part;
		put(together, word);
	}
	return number;
}

static bool room_for_new(struct blkkin_together *together, const char *names[2], uint64_t numbers[2])
{
	size_t bytes[2], most = HEAD_MAX;
	int each;

	for (each = 0; each < 2; each++) {
		bytes[each] = names[each] ? strlen(names[each]) : 0;
		most += 1 + (bytes[each] + 7) / 8;
	}
	if (!has(the_probe(), BLKKIN_TOGETHER) || bytes[0] > NAME_MAX || bytes[1] > NAME_MAX) {
		blkkin_together_say(together);
		return false;
	}
	if (together->length + most > WORDS_MAX || together->named + 2 > NAMES_MAX)
		blkkin_together_say(together);
	for (each = 0; each < 2; each++)
		if (!known(together, names[each], &numbers[each]))
			numbers[each] = named(together, names[each], bytes[each]);
	return true;
}

/*
 * Makes room for one thing with its strings, whose numbers it gives. False: it is for an event of its own, before which all that waits
 * here is said.
 */
static bool room(struct blkkin_together *together, const char *first, const char *second, uint64_t numbers[2])
{
	const char *names[2] = { first, second };

	/* Asked once for an event: what a session leaves off meanwhile it does not get, as with any other. */
	if (together->length && together->length + HEAD_MAX <= WORDS_MAX && known(together, first, &numbers[0]) &&
	    known(together, second, &numbers[1]))
		return true;
	return room_for_new(together, names, numbers);
}

/* The same for something about a span. */
static bool about(struct blkkin_together *together, const struct blkkin_span *span, const char *first, const char *second,
		  uint64_t numbers[2])
{
	if (!room(together, first, second, numbers))
		return false;
	if (together->about != span->context.span) {
		put(together, ABOUT);
		put(together, span->context.span);
		together->about = span->context.span;
	}
	return true;
}

/* LTTng would write a null as "(null)". */
static const char *word(const char *text)
{
	return text ? text : "";
}

void blkkin_ust_together_begin(struct blkkin_together *together, struct blkkin_span *span, uint32_t kept_per_million,
			       enum blkkin_kind kind, const char *name)
{
	const struct blkkin_probe *probe = the_probe();
	const struct blkkin_context *context = &span->context;
	uint64_t numbers[2], wide, below, own;

	if (!probe || !blkkin_make_span(probe, span, kept_per_million))
		return;
	if (!room(together, word(name), word(span->service), numbers)) {
		blkkin_say_begin(probe, span, kind, name, BLKKIN_ELSEWHERE);
		return;
	}
	wide = context->trace_hi != 0;
	below = context->parent != 0;
	own = context->trace_lo == context->span;
	put(together, BEGIN | (uint64_t) kind << 8 | (wide | below << 1 | own << 2) << 12 | numbers[0] << 16 |
			      numbers[1] << 24 | (uint64_t) span->kept_per_million << 32);
	put(together, context->span);
	if (!own)
		put(together, context->trace_lo);
	if (wide)
		put(together, context->trace_hi);
	if (below)
		put(together, context->parent);
	together->about = context->span;
}

void blkkin_ust_together_number(struct blkkin_together *together, const struct blkkin_span *span, const char *key,
				int64_t val)
{
	uint64_t numbers[2];

	if (!about(together, span, word(key), NULL, numbers)) {
		blkkin_ust_number(span->context.span, key, val);
		return;
	}
	if (val >= -(INT64_C(1) << (SMALL_BITS - 1)) && val < INT64_C(1) << (SMALL_BITS - 1)) {
		put(together, SMALL | numbers[0] << 8 | (uint64_t) val << 16);
		return;
	}
	put(together, NUMBER | numbers[0] << 8);
	put(together, (uint64_t) val);
}

void blkkin_ust_together_text(struct blkkin_together *together, const struct blkkin_span *span, const char *key,
			      const char *val)
{
	uint64_t numbers[2];

	if (!about(together, span, word(key), word(val), numbers)) {
		blkkin_ust_text(span->context.span, key, val);
		return;
	}
	put(together, TEXT | numbers[0] << 8 | numbers[1] << 16);
	/* It may be another one there when the next one comes. */
	together->names[numbers[1]] = NULL;
}

void blkkin_ust_together_event(struct blkkin_together *together, const struct blkkin_span *span, const char *name)
{
	uint64_t numbers[2];

	if (!about(together, span, word(name), NULL, numbers)) {
		blkkin_ust_event(span->context.span, name);
		return;
	}
	put(together, EVENT | numbers[0] << 8);
}

void blkkin_ust_together_meeting(struct blkkin_together *together, const struct blkkin_span *span, enum blkkin_side side,
				 const char *rule, const char *connection, uint64_t cookie, bool unique)
{
	uint64_t numbers[2], flags = (side == BLKKIN_ANSWERED) | (uint64_t) unique << 1;

	if (!about(together, span, word(rule), word(connection), numbers)) {
		blkkin_ust_meeting(span->context.span, side, unique, rule, connection, cookie);
		return;
	}
	if (cookie <= UINT32_MAX) {
		put(together, MEETING | (flags | 4) << 8 | numbers[0] << 16 | numbers[1] << 24 | cookie << 32);
		return;
	}
	put(together, MEETING | flags << 8 | numbers[0] << 16 | numbers[1] << 24);
	put(together, cookie);
}

/* blkkin_end() follows, and says it where it was not said here. */
void blkkin_ust_together_end(struct blkkin_together *together, struct blkkin_span *span)
{
	uint64_t numbers[2];
	uint32_t ends;

	if (!room(together, NULL, NULL, numbers))
		return;
	/* What was there may just have been said. */
	ends = together->ends;
	if (span->status) {
		put(together, END | (uint64_t) (uint32_t) span->status << 32);
		ends = WORDS_MAX;
	} else if (ends < WORDS_MAX) {
		together->words[ends] += UINT64_C(1) << 8;
	} else {
		ends = together->length;
		put(together, ENDS | UINT64_C(1) << 8);
	}
	put(together, span->context.span);
	together->ends = ends;
	blkkin_ust_unpublish(span->context.span);
	span->kept_per_million = BLKKIN_CARRIES;
}

void blkkin_ust_together_say(struct blkkin_together *together)
{
	const struct blkkin_probe *probe = the_probe();

	if (probe)
		probe->together(together->words, (uint16_t) together->length);
	blkkin_together_begin(together);
}

/* 0: none. Each session hears it by the events that it has: `Table::turned` in `src/probe.rs`. */
void blkkin_ust_turn(uint64_t left, uint64_t span)
{
	const struct blkkin_probe *probe = the_probe();

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
