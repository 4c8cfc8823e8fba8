/* The slot, in the program itself or in a library. The library may map its own file. */
#define _GNU_SOURCE
#include "thread_context.h"

__attribute__((visibility("default"))) __thread struct record *otel_thread_ctx_v1;

struct record **slot(void)
{
	return &otel_thread_ctx_v1;
}

#ifdef MAPS_OWN_FILE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Maps its own file and keeps the mapping, as profilers do that look for symbols. */
__attribute__((constructor)) static void map_own_file(void)
{
	struct stat stat;
	Dl_info info;
	int file;

	if (!dladdr((void *)slot, &info) || (file = open(info.dli_fname, O_RDONLY)) < 0 || fstat(file, &stat))
		abort();
	if (mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED)
		abort();
}
#endif
