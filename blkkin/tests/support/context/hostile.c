/* A program whose context cannot be had, or is none. As with writer.c each call's offset says for which span it is to be taken.
 *
 * hostile FILE GO CALLS: calls for one span until the file GO is there, then for each way CALLS times. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "thread.h"

#define AWAITED (1L << 40 | 1)
#define PAGE 4096

static int file;

static void call(char *to, long span)
{
	if (pread(file, to, 1, span) < 0)
		abort();
}

int main(int count, char **words)
{
	static struct record record;
	char byte, *pages, *late;
	long calls;
	int paged;

	if (count < 4 || (file = open(words[1], O_RDONLY)) < 0)
		return 2;
	calls = atol(words[3]);
	fill(&record, AWAITED);
	*slot() = &record;
	do {
		call(&byte, AWAITED);
		usleep(500);
	} while (access(words[2], F_OK));

	pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(pages + PAGE, PAGE);
	memset(pages, 1, PAGE);

	/* Nowhere. */
	*(struct record *volatile *)slot() = (struct record *)16;
	for (long i = 0; i < calls; i++)
		call(&byte, 0);
	/* In the kernel. */
	*(struct record *volatile *)slot() = (struct record *)0xffffffff81000000;
	for (long i = 0; i < calls; i++)
		call(&byte, 0);
	/* Cut: the page behind its first bytes is not there. */
	*(struct record *volatile *)slot() = (struct record *)(pages + PAGE - 20);
	for (long i = 0; i < calls; i++)
		call(&byte, 0);
	/* Not valid, and none. */
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

	/* Not there at entry; the call itself has the page brought in, and at return it is. */
	paged = open(words[2], O_RDWR);
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
