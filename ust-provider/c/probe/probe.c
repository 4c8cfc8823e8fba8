/*
 * The probe: a shared object of its own, which alone is linked to liblttng-ust. In: calls through `blkkin_probe`; out: LTTng's
 * events, counted.
 *
 * It is compiled when the program that embeds it is, and loaded by that program's init(); nothing of it runs before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include <lttng/ust-fork.h>

#include "counts.h"
#include "probe.h"
#include "sampling.h"

#define LTTNG_UST_TRACEPOINT_DEFINE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_HIDDEN_DEFINITION
#define LTTNG_UST_TRACEPOINT_PROVIDER_HIDDEN_DEFINITION
#include "blkkin_tp.h"
#include "zipkin_tp.h"

/* An event is counted exactly when it is given to LTTng. */
#define SAY(provider, name, ...)							\
	do {										\
		if (lttng_ust_tracepoint_enabled(provider, name)) {			\
			count_seen();							\
			lttng_ust_do_tracepoint(provider, name, __VA_ARGS__);		\
		}									\
	} while (0)

#define STATE(provider, name) (&lttng_ust_tracepoint_##provider##___##name.state)

static struct blkkin_sampling sampling;

/* LTTng would write a null as "(null)". */
static const char *word(const char *text)
{
	return text ? text : "";
}

static void begin(const struct blkkin_begin *b)
{
	SAY(blkkin, begin, b->trace_hi, b->trace_lo, b->span, b->parent, b->kind, b->on, b->kept_per_million,
	    word(b->name), word(b->service));
}

static void end(uint64_t span, int32_t status)
{
	SAY(blkkin, end, span, status);
}

static void enter(uint64_t span)
{
	SAY(blkkin, enter, span);
}

static void leave(uint64_t span)
{
	SAY(blkkin, leave, span);
}

static void unseen_enter(uint64_t span)
{
	SAY(blkkin, unseen_enter, span);
}

static void unseen_leave(uint64_t span)
{
	SAY(blkkin, unseen_leave, span);
}

static void turn(uint64_t left, uint64_t span)
{
	SAY(blkkin, turn, left, span);
}

static void together(const uint64_t *words, uint16_t count)
{
	SAY(blkkin, together, words, count);
}

static void event(uint64_t span, const char *name)
{
	SAY(blkkin, event, span, word(name));
}

static void text(uint64_t span, const char *key, const char *val)
{
	SAY(blkkin, text, span, word(key), word(val));
}

static void number(uint64_t span, const char *key, int64_t val)
{
	SAY(blkkin, number, span, word(key), val);
}

static void meeting(uint64_t span, uint8_t side, uint8_t unique, const char *rule, const char *connection,
		    uint64_t cookie)
{
	SAY(blkkin, meeting, span, side, unique, word(rule), word(connection), cookie);
}

#define WHOM(w)										\
	word((w)->trace_name), word((w)->service_name), (w)->port_no, word((w)->ip), (w)->trace_id, (w)->span_id,	\
		(w)->parent_span_id

static void zipkin_timestamp(const struct blkkin_zipkin *whom, const char *what)
{
	SAY(zipkin, timestamp, WHOM(whom), word(what));
}

static void zipkin_keyval_string(const struct blkkin_zipkin *whom, const char *key, const char *val)
{
	SAY(zipkin, keyval_string, WHOM(whom), word(key), word(val));
}

static void zipkin_keyval_integer(const struct blkkin_zipkin *whom, const char *key, int64_t val)
{
	SAY(zipkin, keyval_integer, WHOM(whom), word(key), val);
}

static void zipkin_keyval(const struct blkkin_zipkin *whom, const char *key, const char *val)
{
	SAY(zipkin, keyval, WHOM(whom), word(key), word(val));
}

static void set_rate(uint32_t roots_per_second)
{
	blkkin_sampling_set(&sampling, roots_per_second, clock_ns(CLOCK_MONOTONIC_COARSE));
}

static uint32_t keep_root(uint64_t random)
{
	if (!__atomic_load_n(&sampling.rate, __ATOMIC_RELAXED))
		return BLKKIN_ALL;
	return blkkin_sampling_keep(&sampling, clock_ns(CLOCK_MONOTONIC_COARSE), random);
}

/* Between the handlers of one fork, under LTTng's own locks. */
static sigset_t before;

static void fork_prepare(void)
{
	lttng_ust_before_fork(&before);
}

static void fork_parent(void)
{
	lttng_ust_after_fork_parent(&before);
}

static void fork_child(void)
{
	lttng_ust_after_fork_child(&before);
}

static int follow_forks(void)
{
	/* Preloaded, it does the same around fork(), and LTTng's locks are not taken twice. */
	if (dlopen("liblttng-ust-fork.so.1", RTLD_NOW | RTLD_NOLOAD))
		return 0;
	return pthread_atfork(fork_prepare, fork_parent, fork_child);
}

__attribute__((visibility("default"))) const struct blkkin_probe blkkin_probe = {
	.abi = BLKKIN_PROBE_ABI,
	.size = sizeof(struct blkkin_probe),
	.state = {
		[BLKKIN_BEGIN] = STATE(blkkin, begin),
		[BLKKIN_END] = STATE(blkkin, end),
		[BLKKIN_ENTER] = STATE(blkkin, enter),
		[BLKKIN_LEAVE] = STATE(blkkin, leave),
		[BLKKIN_EVENT] = STATE(blkkin, event),
		[BLKKIN_TEXT] = STATE(blkkin, text),
		[BLKKIN_NUMBER] = STATE(blkkin, number),
		[BLKKIN_MEETING] = STATE(blkkin, meeting),
		[BLKKIN_TURN] = STATE(blkkin, turn),
		[BLKKIN_TOGETHER] = STATE(blkkin, together),
		[BLKKIN_UNSEEN_ENTER] = STATE(blkkin, unseen_enter),
		[BLKKIN_UNSEEN_LEAVE] = STATE(blkkin, unseen_leave),
		[BLKKIN_ZIPKIN_TIMESTAMP] = STATE(zipkin, timestamp),
		[BLKKIN_ZIPKIN_KEYVAL_STRING] = STATE(zipkin, keyval_string),
		[BLKKIN_ZIPKIN_KEYVAL_INTEGER] = STATE(zipkin, keyval_integer),
		[BLKKIN_ZIPKIN_KEYVAL] = STATE(zipkin, keyval),
	},
	.begin = begin,
	.end = end,
	.enter = enter,
	.leave = leave,
	.event = event,
	.text = text,
	.number = number,
	.meeting = meeting,
	.turn = turn,
	.together = together,
	.unseen_enter = unseen_enter,
	.unseen_leave = unseen_leave,
	.keep_root = keep_root,
	.set_rate = set_rate,
	.seen_enabled = seen_enabled,
	.first_enabled_ns = first_enabled_ns,
	.follow_forks = follow_forks,
	.zipkin_timestamp = zipkin_timestamp,
	.zipkin_keyval_string = zipkin_keyval_string,
	.zipkin_keyval_integer = zipkin_keyval_integer,
	.zipkin_keyval = zipkin_keyval,
};
