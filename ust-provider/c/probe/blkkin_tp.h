/*
 * Events of the provider `blkkin`. Their names, fields and order are a wire format that ust-bridge
 * reads. An id of 0 is none.
 */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER blkkin

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./blkkin_tp.h"

#if !defined(BLKKIN_TP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define BLKKIN_TP_H

#include <stdint.h>

#include <lttng/tracepoint.h>

/*
 * kind: 0 internal, 1 server, 2 client. on: 1 if this thread works for the span until its end, 2 if
 * it also publishes it.
 */
LTTNG_UST_TRACEPOINT_EVENT(blkkin, begin,
	LTTNG_UST_TP_ARGS(uint64_t, trace_hi, uint64_t, trace_lo, uint64_t, span, uint64_t, parent, uint8_t, kind,
			  uint8_t, on, uint32_t, sampled_per_million, const char *, name, const char *, service),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, trace_hi, trace_hi)
		lttng_ust_field_integer(uint64_t, trace_lo, trace_lo)
		lttng_ust_field_integer(uint64_t, span, span)
		lttng_ust_field_integer(uint64_t, parent, parent)
		lttng_ust_field_integer(uint8_t, kind, kind)
		lttng_ust_field_integer(uint8_t, on, on)
		lttng_ust_field_integer(uint32_t, sampled_per_million, sampled_per_million)
		lttng_ust_field_string(name, name)
		lttng_ust_field_string(service, service)
	)
)

/* status: 0, or a positive errno. No thread works for the span any more. */
LTTNG_UST_TRACEPOINT_EVENT(blkkin, end,
	LTTNG_UST_TP_ARGS(uint64_t, span, int32_t, status),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, span, span)
		lttng_ust_field_integer(int32_t, status, status)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(blkkin, enter,
	LTTNG_UST_TP_ARGS(uint64_t, span),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, span, span))
)

LTTNG_UST_TRACEPOINT_EVENT(blkkin, leave,
	LTTNG_UST_TP_ARGS(uint64_t, span),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, span, span))
)

/* enter and leave of a process that does not publish OpenTelemetry's thread contexts. */
LTTNG_UST_TRACEPOINT_EVENT(blkkin, unpublished_enter,
	LTTNG_UST_TP_ARGS(uint64_t, span),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, span, span))
)

LTTNG_UST_TRACEPOINT_EVENT(blkkin, unpublished_leave,
	LTTNG_UST_TP_ARGS(uint64_t, span),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, span, span))
)

/* leave of `left` and enter of `span`, without a system call in between. */
LTTNG_UST_TRACEPOINT_EVENT(blkkin, switch_span,
	LTTNG_UST_TP_ARGS(uint64_t, left, uint64_t, span),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, left, left)
		lttng_ust_field_integer(uint64_t, span, span)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(blkkin, event,
	LTTNG_UST_TP_ARGS(uint64_t, span, const char *, name),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, span, span)
		lttng_ust_field_string(name, name)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(blkkin, text,
	LTTNG_UST_TP_ARGS(uint64_t, span, const char *, key, const char *, val),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, span, span)
		lttng_ust_field_string(key, key)
		lttng_ust_field_string(val, val)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(blkkin, number,
	LTTNG_UST_TP_ARGS(uint64_t, span, const char *, key, int64_t, val),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, span, span)
		lttng_ust_field_string(key, key)
		lttng_ust_field_integer(int64_t, val, val)
	)
)

/* RPC endpoint. side: 0 client, 1 server. unique: a cookie occurs only once on this connection. */
LTTNG_UST_TRACEPOINT_EVENT(blkkin, rpc_endpoint,
	LTTNG_UST_TP_ARGS(uint64_t, span, uint8_t, side, uint8_t, unique, const char *, protocol, const char *, connection,
			  uint64_t, cookie),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, span, span)
		lttng_ust_field_integer(uint8_t, side, side)
		lttng_ust_field_integer(uint8_t, unique, unique)
		lttng_ust_field_string(protocol, protocol)
		lttng_ust_field_string(connection, connection)
		lttng_ust_field_integer(uint64_t, cookie, cookie)
	)
)

#endif

#include <lttng/tracepoint-event.h>
