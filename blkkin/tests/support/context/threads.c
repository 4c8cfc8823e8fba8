/* Threads that come and go: each calls for none, then for a span of its own, and most end inside of it, with a record that goes with
 * them. The next one has the memory of one that is gone, in which that one's slot was. As with writer.c each call's offset says for which
 * span it is to be taken.
 *
 * threads FILE LIBRARY|- GO COUNT: for one span, AWAITED, there are calls until the file GO is there. Then COUNT threads live, one after another.
 * It says how many of them had their slot where the one before had its own; unloads the library; and calls for none, of two bytes
 * at the offset STAYED, as long as the file GO is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "thread.h"

#define AWAITED (1L << 40 | 1)
#define STAYED (1L << 41)
#define CALLS 5

static struct record **(*find)(void);
static int file;
static long again;

static void call(long span)
{
	char byte;

	if (pread(file, &byte, 1, span) < 0)
		abort();
}

static void publish(struct record *record)
{
	atomic_signal_fence(memory_order_seq_cst);
	*(struct record *volatile *)find() = record;
}

static void *live(void *number)
{
	static struct record **before;
	struct record record;
	long span = (long)number;

	/* Its slot was not asked for yet. */
	call(0);
	again += find() == before;
	before = find();
	call(0);
	fill(&record, span);
	publish(&record);
	for (int i = 0; i < CALLS; i++)
		call(span);
	if (span % 4 == 0)
		publish(NULL);
	return NULL;
}

#ifdef OWN
#define FIND slot
#else
#define FIND NULL
#endif

int main(int count, char **words)
{
	static struct record record;
	void *library = NULL;
	pthread_t thread;
	char bytes[2];

	if (count < 5 || (file = open(words[1], O_RDONLY)) < 0)
		return 2;
	find = FIND;
	if (strcmp(words[2], "-")) {
		library = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
		find = library ? (struct record **(*)(void))dlsym(library, "slot") : NULL;
	}
	if (!find)
		return 3;
	fill(&record, AWAITED);
	publish(&record);
	do {
		call(AWAITED);
		usleep(500);
	} while (access(words[3], F_OK));
	publish(NULL);
	for (long span = 1; span <= atol(words[4]); span++)
		if (pthread_create(&thread, NULL, live, (void *)span) || pthread_join(thread, NULL))
			return 4;
	printf("%ld\n", again);
	fflush(stdout);
	if (library && dlclose(library))
		return 5;
	do {
		if (pread(file, bytes, sizeof bytes, STAYED) < 0)
			return 6;
		usleep(500);
	} while (!access(words[3], F_OK));
	return 0;
}
