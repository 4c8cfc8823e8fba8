/*
 * Random ids for spans and traces: 64 bits, never 0, with a random state per thread, as in
 * `src/ids.rs`. A forked child has a copy of its parent's state, so after a fork every thread takes
 * a new one.
 */
#ifndef BLKKIN_IDS_H
#define BLKKIN_IDS_H

#include <stdint.h>

uint64_t blkkin_fresh_id(void);

/* Invalidates the states in a forked child. */
void blkkin_ids_forked(void);

#endif
