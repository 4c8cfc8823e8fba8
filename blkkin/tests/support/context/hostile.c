/*
 * A program whose context is unreadable or invalid. As in writer.c, each call's offset encodes its span.
 *
 * hostile FILE GO CALLS
 *
 * Warm-up: calls for the span WARM_UP until the file GO exists; then CALLS calls for each case.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "thread_context.h"

#define WARM_UP (1L << 40 | 1)
#define PAGE 4096

static int file;

static void call(char *to, long span)
{
	if (pread(file, to, 1, span) < 0)
		abort();
}

int main(int count, char **args)
{
	static struct record record;
	char byte, *pages, *late;
	long calls;
	int paged;

	if (count < 4 || (file = open(args[1], O_RDONLY)) < 0)
		return 2;
	calls = atol(args[3]);
	fill(&record, WARM_UP);
	*slot() = &record;
	do {
		call(&byte, WARM_UP);
		usleep(500);
	} while (access(args[2], F_OK));

	pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(pages + PAGE, PAGE);
	memset(pages, 1, PAGE);

	/* An unmapped address. */
	*(struct record *volatile *)slot() = (struct record *)16;
	for (long i = 0; i < calls; i++)
		call(&byte, 0);
	/* A kernel address. */
	*(struct record *volatile *)slot() = (struct record *)0xffffffff81000000;
	for (long i = 0; i < calls; i++)
		call(&byte, 0);
	/* A truncated record: the page after its first bytes is not mapped. */
	*(struct record *volatile *)slot() = (struct record *)(pages + PAGE - 20);
	for (long i = 0; i < calls; i++)
		call(&byte, 0);
	/* A record that is not valid, and records without a trace id or span id. */
	*(struct record *volatile *)slot() = &record;
	record.valid = 2;
	call(&byte, 0);
	record.valid = 1;
	memset(record.trace, 0, sizeof record.trace);
	for (long i = 0; i < calls; i++)
		call(&byte, 0);
	fill(&record, 7);
	memset(record.span, 0, sizeof record.span);
	for (long i = 0; i < calls; i++)
		call(&byte, 0);
	fill(&record, 8);
	call(&byte, 8);

	/* A page that is absent at entry. The call itself brings it in, so it is present at exit. */
	paged = open(args[2], O_RDWR);
	if (paged < 0 || ftruncate(paged, PAGE))
		return 3;
	late = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, paged, 0);
	if (late == MAP_FAILED)
		return 4;
	fill((struct record *)late, 9);
	*(struct record *volatile *)slot() = (struct record *)late;
	for (long i = 0; i < calls; i++) {
		if (madvise(late, PAGE, MADV_DONTNEED))
			return 5;
		call(late + 100, 9);
	}
	return 0;
}
