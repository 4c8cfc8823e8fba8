/*
 * Two libraries that each have a slot: it cannot be known which one counts.
 *
 * two_slots FILE LIBRARY OTHER CALLS
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "thread_context.h"

static struct record **load(const char *library)
{
	void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	return ((struct record **(*)(void))dlsym(loaded, "slot"))();
}

int main(int count, char **args)
{
	static struct record one = { .trace = { 1 }, .span = { 1 }, .valid = 1 };
	static struct record other = { .trace = { 2 }, .span = { 2 }, .valid = 1 };
	int file = count < 5 ? -1 : open(args[1], O_RDONLY);
	char byte;

	if (file < 0)
		return 2;
	struct record **first = load(args[2]), **second = load(args[3]);
	*first = &one;
	*second = &other;
	for (long i = 0; i < atol(args[4]); i++) {
		usleep(1000);
		if (pread(file, &byte, 1, 0) < 0)
			abort();
	}
	return 0;
}
