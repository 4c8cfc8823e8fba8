/* Publication of thread contexts: see thread_context.c. */
#ifndef BLKKIN_PUBLISH_H
#define BLKKIN_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Starts publishing if `wanted`. Returns 0, or the negative errno of blkkin_publishing() with the
 * reason in `why`. `load` loads an object; it returns a negative errno with its reason.
 */
int blkkin_start_publishing(bool wanted, int (*load)(const char *name, const unsigned char *bytes, size_t size, void **handle,
						     char *why, size_t room),
			    char *why, size_t room);

#endif
