/* Declarations that the files of the library share. */
#ifndef BLKKIN_INTERNAL_H
#define BLKKIN_INTERNAL_H

#include <blkkin/ust.h>

#include "../probe/probe.h"

/* The embedded probe (embedded.S). Empty if it could not be built. */
extern const unsigned char blkkin_probe_bytes[];
extern const unsigned char blkkin_probe_bytes_end[];

/* The embedded slot (thread_context.c). Empty if it could not be built. */
extern const unsigned char blkkin_slot_bytes[];
extern const unsigned char blkkin_slot_bytes_end[];

/* NULL until blkkin_init(). */
extern const struct blkkin_probe *blkkin_ust_probe;

/* Both halves of a begin (span.c): the ids, and the event. */
bool blkkin_assign_ids(const struct blkkin_probe *probe, struct blkkin_span *span, uint32_t kept_per_million);
void blkkin_emit_begin(const struct blkkin_probe *probe, const struct blkkin_span *span, enum blkkin_kind kind,
		       const char *name, enum blkkin_scope scope);

#endif
