/*
 * Events of the provider `zipkin`: blkin's, with its names, fields and order. Seven common fields
 * name the trace and the endpoint; the annotation follows.
 */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER zipkin

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./zipkin_tp.h"

#if !defined(BLKKIN_ZIPKIN_TP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define BLKKIN_ZIPKIN_TP_H

#include <stdint.h>

#include <lttng/tracepoint.h>

/* Common fields of all events. */
#define ZIPKIN_TRACE_ARGS									\
	const char *, trace_name, const char *, service_name, int, port_no, const char *, ip,		\
	int64_t, trace_id, int64_t, span_id, int64_t, parent_span_id
#define ZIPKIN_TRACE_FIELDS									\
	lttng_ust_field_string(trace_name, trace_name)						\
	lttng_ust_field_string(service_name, service_name)					\
	lttng_ust_field_integer(int, port_no, port_no)						\
	lttng_ust_field_string(ip, ip)								\
	lttng_ust_field_integer(int64_t, trace_id, trace_id)					\
	lttng_ust_field_integer(int64_t, span_id, span_id)					\
	lttng_ust_field_integer(int64_t, parent_span_id, parent_span_id)

LTTNG_UST_TRACEPOINT_EVENT(zipkin, timestamp,
	LTTNG_UST_TP_ARGS(ZIPKIN_TRACE_ARGS, const char *, event),
	LTTNG_UST_TP_FIELDS(
		ZIPKIN_TRACE_FIELDS
		lttng_ust_field_string(event, event)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(zipkin, keyval_string,
	LTTNG_UST_TP_ARGS(ZIPKIN_TRACE_ARGS, const char *, key,
			  const char *, val),
	LTTNG_UST_TP_FIELDS(
		ZIPKIN_TRACE_FIELDS
		lttng_ust_field_string(key, key)
		lttng_ust_field_string(val, val)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(zipkin, keyval_integer,
	LTTNG_UST_TP_ARGS(ZIPKIN_TRACE_ARGS, const char *, key,
			  int64_t, val),
	LTTNG_UST_TP_FIELDS(
		ZIPKIN_TRACE_FIELDS
		lttng_ust_field_string(key, key)
		lttng_ust_field_integer(int64_t, val, val)
	)
)

/* Event of the older generation, in place of keyval_string. */
LTTNG_UST_TRACEPOINT_EVENT(zipkin, keyval,
	LTTNG_UST_TP_ARGS(ZIPKIN_TRACE_ARGS, const char *, key,
			  const char *, val),
	LTTNG_UST_TP_FIELDS(
		ZIPKIN_TRACE_FIELDS
		lttng_ust_field_string(key, key)
		lttng_ust_field_string(val, val)
	)
)

#endif

#include <lttng/tracepoint-event.h>
