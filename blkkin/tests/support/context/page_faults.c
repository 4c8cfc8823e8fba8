/*
 * Page faults in spans.
 *
 * page_faults GO FILE FAULTS
 *
 * Warm-up: calls for the span WARM_UP until the file GO exists. Then FILE is removed from memory and mapped,
 * and every STEP-th page of it is read, FAULTS pages in all: page n * STEP for span n, or for none if n % 4 is 0.
 * Prints the number of major faults, by the kernel's count.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "thread_context.h"

#define WARM_UP (1L << 40 | 1)
#define STEP 16
#define PAGE 4096

static void leave(void)
{
	*(struct record *volatile *)slot() = NULL;
	atomic_signal_fence(memory_order_seq_cst);
}

static void enter(struct record *record, long span)
{
	leave();
	fill(record, span);
	atomic_signal_fence(memory_order_seq_cst);
	*(struct record *volatile *)slot() = record;
}

static long major_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_majflt;
}

int main(int count, char **args)
{
	static struct record record;
	struct stat status;
	volatile char *base;
	long before;
	int file;
	char byte;

	if (count < 4 || (file = open(args[2], O_RDWR)) < 0 || fstat(file, &status))
		return 2;
	enter(&record, WARM_UP);
	do {
		if (pread(file, &byte, 1, WARM_UP) < 0)
			return 3;
		usleep(500);
	} while (access(args[1], F_OK));
	if (fsync(file) || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED))
		return 4;
	base = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, file, 0);
	if (base == MAP_FAILED || madvise((void *)base, status.st_size, MADV_RANDOM))
		return 5;
	before = major_faults();
	for (long n = 1; n <= atol(args[3]); n++) {
		if (n % 4)
			enter(&record, n);
		else
			leave();
		(void)base[n * STEP * PAGE];
	}
	printf("%ld\n", major_faults() - before);
	return 0;
}
