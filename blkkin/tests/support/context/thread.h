/* What a thread publishes of the span that it works for: OpenTelemetry's thread context (OTEP 4947). */
#include <stdint.h>
#include <string.h>

struct record {
	uint8_t trace[16];
	uint8_t span[8];
	uint8_t valid;
	uint8_t flags;
	uint16_t attributes;
} __attribute__((packed));

/* The trace of a span, as the test knows it: its number and its complement. */
static inline void fill(struct record *record, uint64_t span)
{
	uint64_t high = __builtin_bswap64(~span), low = __builtin_bswap64(span), own = low;

	memcpy(record->trace, &high, 8);
	memcpy(record->trace + 8, &low, 8);
	memcpy(record->span, &own, 8);
	record->valid = 1;
	record->flags = span & 1;
	record->attributes = 0;
}

/* Where a thread publishes: its own slot. */
extern struct record **slot(void);
