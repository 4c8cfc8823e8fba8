/*
 * The probe: the only shared object that links to liblttng-ust. In: calls through `blkkin_probe`.
 * Out: LTTng's events, counted.
 *
 * It is compiled with the program that embeds it, and loaded by that program's init(). Nothing of
 * it runs before.
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

/* Counts an event exactly when it is passed to LTTng. */
#define EMIT(provider, name, ...)						\
	do {									\
		if (lttng_ust_tracepoint_enabled(provider, name)) {		\
			count_seen();						\
			lttng_ust_do_tracepoint(provider, name, __VA_ARGS__);	\
		}								\
	} while (0)

#define STATE(provider, name) (&lttng_ust_tracepoint_##provider##___##name.state)

static struct blkkin_sampling sampling = { .rate = BLKKIN_ROOTS_PER_SECOND, .interval = 1 };
static __thread struct blkkin_sampling_group sampling_group;

/* Replaces a null pointer, which LTTng would write as "(null)". */
static const char *non_null(const char *text)
{
	return text ? text : "";
}

static void begin(const struct blkkin_begin *b)
{
	EMIT(blkkin, begin, b->trace_hi, b->trace_lo, b->span, b->parent, b->kind, b->on, b->sampled_per_million,
	    non_null(b->name), non_null(b->service));
}

static void end(uint64_t span, int32_t status)
{
	EMIT(blkkin, end, span, status);
}

static void enter(uint64_t span)
{
	EMIT(blkkin, enter, span);
}

static void leave(uint64_t span)
{
	EMIT(blkkin, leave, span);
}

static void unpublished_enter(uint64_t span)
{
	EMIT(blkkin, unpublished_enter, span);
}

static void unpublished_leave(uint64_t span)
{
	EMIT(blkkin, unpublished_leave, span);
}

static void switch_span(uint64_t left, uint64_t span)
{
	EMIT(blkkin, switch_span, left, span);
}

static void event(uint64_t span, const char *name)
{
	EMIT(blkkin, event, span, non_null(name));
}

static void text(uint64_t span, const char *key, const char *val)
{
	EMIT(blkkin, text, span, non_null(key), non_null(val));
}

static void number(uint64_t span, const char *key, int64_t val)
{
	EMIT(blkkin, number, span, non_null(key), val);
}

static void rpc_endpoint(uint64_t span, uint8_t side, uint8_t unique, const char *protocol, const char *connection,
		    uint64_t cookie)
{
	EMIT(blkkin, rpc_endpoint, span, side, unique, non_null(protocol), non_null(connection), cookie);
}

#define TRACE_FIELDS(w)														\
	non_null((w)->trace_name), non_null((w)->service_name), (w)->port_no, non_null((w)->ip), (w)->trace_id, (w)->span_id,	\
		(w)->parent_span_id

static void zipkin_timestamp(const struct blkkin_zipkin *trace, const char *event)
{
	EMIT(zipkin, timestamp, TRACE_FIELDS(trace), non_null(event));
}

static void zipkin_keyval_string(const struct blkkin_zipkin *trace, const char *key, const char *val)
{
	EMIT(zipkin, keyval_string, TRACE_FIELDS(trace), non_null(key), non_null(val));
}

static void zipkin_keyval_integer(const struct blkkin_zipkin *trace, const char *key, int64_t val)
{
	EMIT(zipkin, keyval_integer, TRACE_FIELDS(trace), non_null(key), val);
}

static void zipkin_keyval(const struct blkkin_zipkin *trace, const char *key, const char *val)
{
	EMIT(zipkin, keyval, TRACE_FIELDS(trace), non_null(key), non_null(val));
}

static void set_rate(uint32_t roots_per_second)
{
	sampling.rate = roots_per_second;
}

static uint64_t keep_root(uint64_t random)
{
	uint32_t ratio, drop_next;

	if (!sampling.rate)
		return BLKKIN_ALL;
	ratio = blkkin_sampling_keep(&sampling, &sampling_group, clock_ns(CLOCK_MONOTONIC_COARSE), random, &drop_next);
	return (uint64_t) drop_next << 32 | ratio;
}

/* Signal mask between the handlers of one fork. LTTng's own locks protect it. */
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
	/*
	 * The preloaded library does the same around fork(), and must not take LTTng's locks twice.
	 */
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
		[BLKKIN_RPC_ENDPOINT] = STATE(blkkin, rpc_endpoint),
		[BLKKIN_SWITCH_SPAN] = STATE(blkkin, switch_span),
		[BLKKIN_UNPUBLISHED_ENTER] = STATE(blkkin, unpublished_enter),
		[BLKKIN_UNPUBLISHED_LEAVE] = STATE(blkkin, unpublished_leave),
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
	.rpc_endpoint = rpc_endpoint,
	.switch_span = switch_span,
	.unpublished_enter = unpublished_enter,
	.unpublished_leave = unpublished_leave,
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
