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

/*
 * Returns the sampling ratio of a root that begins now, per million, or 0 if it is dropped
 * (src/sampling.rs).
 */
uint32_t blkkin_keep_root(const struct blkkin_probe *probe);

#endif
