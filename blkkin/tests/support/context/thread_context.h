/* The record by which a thread publishes its current span: OpenTelemetry's thread context (OTEP 4947). */
#include <stdint.h>
#include <string.h>

struct record {
	uint8_t trace[16];
	uint8_t span[8];
	uint8_t valid;
	uint8_t flags;
	uint16_t attributes;
} __attribute__((packed));

/* Fills the record. A test derives the trace id from the span id: the complement, then the span id. */
static inline void fill(struct record *record, uint64_t span)
{
	uint64_t high = __builtin_bswap64(~span), low = __builtin_bswap64(span), id = low;

	memcpy(record->trace, &high, 8);
	memcpy(record->trace + 8, &low, 8);
	memcpy(record->span, &id, 8);
	record->valid = 1;
	record->flags = span & 1;
	record->attributes = 0;
}

/* Returns the slot of the calling thread. */
extern struct record **slot(void);
