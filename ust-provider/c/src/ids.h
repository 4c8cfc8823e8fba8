/*
 * Ids for spans and traces: 64 bits, never 0, each thread with its own random beginning, as `src/ids.rs` has them. A forked
 * child would draw its parent's next ids, so after a fork every thread begins anew.
 */
#ifndef BLKKIN_IDS_H
#define BLKKIN_IDS_H

#include <stdint.h>

uint64_t blkkin_fresh_id(void);

/* In a forked child. */
void blkkin_ids_forked(void);

#endif
