#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER sample

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./sample_tp.h"

#if !defined(SAMPLE_TP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define SAMPLE_TP_H

#include <lttng/tracepoint.h>
#include <stdint.h>

LTTNG_UST_TRACEPOINT_ENUM(sample, direction,
	LTTNG_UST_TP_ENUM_VALUES(
		lttng_ust_field_enum_value("READ", 0)
		lttng_ust_field_enum_value("WRITE", 1)
		lttng_ust_field_enum_range("OTHER", 2, 7)
	)
)

/* One field of each type of LTTng-UST. */
LTTNG_UST_TRACEPOINT_EVENT(sample, kinds,
	LTTNG_UST_TP_ARGS(uint64_t, n, const char *, text, const uint8_t *, bytes, size_t, length),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(int8_t, i8, -(int8_t)n)
		lttng_ust_field_integer(uint16_t, u16, (uint16_t)n)
		lttng_ust_field_integer(int32_t, i32, -(int32_t)n)
		lttng_ust_field_integer(uint64_t, u64, n * 0x9E3779B97F4A7C15ULL)
		lttng_ust_field_integer_hex(uint32_t, hex, (uint32_t)n)
		lttng_ust_field_integer_network(uint16_t, port, (uint16_t)n)
		lttng_ust_field_float(float, f32, n / 3.0f)
		lttng_ust_field_float(double, f64, n / 7.0)
		lttng_ust_field_string(text, text)
		lttng_ust_field_array(uint8_t, four, bytes, 4)
		lttng_ust_field_array_text(char, name, bytes, 4)
		lttng_ust_field_sequence(uint8_t, numbers, bytes, size_t, length)
		lttng_ust_field_sequence_hex(uint8_t, hex_numbers, bytes, size_t, length)
		lttng_ust_field_sequence_text(char, text_sequence, (const char *)bytes, size_t, length)
		lttng_ust_field_enum(sample, direction, uint8_t, direction, n % 10)
	)
)

/* Event of the usual size: a daemon's instrumentation emits small events. */
LTTNG_UST_TRACEPOINT_EVENT(sample, tick,
	LTTNG_UST_TP_ARGS(uint64_t, n, const char *, text),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, n, n)
		lttng_ust_field_string(text, text)
	)
)

#endif

#include <lttng/tracepoint-event.h>
