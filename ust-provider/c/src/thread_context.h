/* What a thread works for, where the kernel's side reads it: see publish.c. */
#ifndef BLKKIN_PUBLISH_H
#define BLKKIN_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Publishes from now on, where that is wanted and possible; else the negative errno of blkkin_publishing(), and why in `why`. An object is
 * loaded by `load`, which gives a negative errno and says why itself.
 */
int blkkin_start_publishing(bool wanted, int (*load)(const char *name, const unsigned char *bytes, size_t size, void **handle,
						  char *why, size_t room),
			 char *why, size_t room);

#endif
