/* What a thread publishes of the span that it works for: OpenTelemetry's thread context (OTEP 4947). */
#include <stdint.h>

struct record {
	uint8_t trace[16];
	uint8_t span[8];
	uint8_t valid;
	uint8_t flags;
	uint16_t attributes;
} __attribute__((packed));

/* Where a thread publishes: its own slot. */
extern struct record **slot(void);
