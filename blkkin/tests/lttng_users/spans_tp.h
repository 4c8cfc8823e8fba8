#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER blkkin

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./spans_tp.h"

#if !defined(SPANS_TP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define SPANS_TP_H

#include <lttng/tracepoint.h>
#include <stdint.h>

/* Begin of a span, in the form of configs/mappings/blkkin.toml. */
LTTNG_UST_TRACEPOINT_EVENT(blkkin, begin,
	LTTNG_UST_TP_ARGS(uint64_t, span, const char *, service),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, trace_hi, 1)
		lttng_ust_field_integer(uint64_t, trace_lo, span)
		lttng_ust_field_integer(uint64_t, span, span)
		lttng_ust_field_integer(uint64_t, parent, 0)
		lttng_ust_field_integer(uint8_t, kind, 1)
		lttng_ust_field_integer(uint8_t, on, 1)
		lttng_ust_field_integer(uint32_t, kept_per_million, 1000000)
		lttng_ust_field_string(name, "work")
		lttng_ust_field_string(service, service)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(blkkin, end,
	LTTNG_UST_TP_ARGS(uint64_t, span),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, span, span)
		lttng_ust_field_integer(int32_t, status, 0)
	)
)

#endif

#include <lttng/tracepoint-event.h>
