/* What the files of the library share. */
#ifndef BLKKIN_INTERNAL_H
#define BLKKIN_INTERNAL_H

#include "../probe/probe.h"

/* The probe that was embedded: embedded.S. Empty where it could not be made. */
extern const unsigned char blkkin_probe_bytes[];
extern const unsigned char blkkin_probe_bytes_end[];

/* The slot likewise (publish.c). */
extern const unsigned char blkkin_slot_bytes[];
extern const unsigned char blkkin_slot_bytes_end[];

/* NULL until blkkin_init(). */
extern const struct blkkin_probe *blkkin_ust_probe;

#endif
