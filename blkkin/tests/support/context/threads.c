/*
 * Short-lived threads. Each makes calls for no span, then for a span of its own, and most end inside of it;
 * the record on their stack ends with them. The next thread reuses the memory of the previous one, which
 * had the slot. As in writer.c, each call's offset encodes its span.
 *
 * threads FILE LIBRARY|- GO COUNT
 *
 * Warm-up: calls for the span WARM_UP until the file GO exists. Then COUNT threads run, one after another.
 * It prints how many of them had the slot at the address of their predecessor's, unloads the library, and
 * makes calls of two bytes at the offset STAYED for no span while the file GO exists.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "thread_context.h"

#define WARM_UP (1L << 40 | 1)
#define STAYED (1L << 41)
#define CALLS 5

static struct record **(*slot_address)(void);
static int file;
static long reused_slots;

static void call(long span)
{
	char byte;

	if (pread(file, &byte, 1, span) < 0)
		abort();
}

static void publish(struct record *record)
{
	atomic_signal_fence(memory_order_seq_cst);
	*(struct record *volatile *)slot_address() = record;
}

static void *run_thread(void *number)
{
	static struct record **previous;
	struct record record;
	long span = (long)number;

	/* The address of its slot was not requested yet. */
	call(0);
	reused_slots += slot_address() == previous;
	previous = slot_address();
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

int main(int count, char **args)
{
	static struct record record;
	void *library = NULL;
	pthread_t thread;
	char bytes[2];

	if (count < 5 || (file = open(args[1], O_RDONLY)) < 0)
		return 2;
	slot_address = FIND;
	if (strcmp(args[2], "-")) {
		library = dlopen(args[2], RTLD_NOW | RTLD_LOCAL);
		slot_address = library ? (struct record **(*)(void))dlsym(library, "slot") : NULL;
	}
	if (!slot_address)
		return 3;
	fill(&record, WARM_UP);
	publish(&record);
	do {
		call(WARM_UP);
		usleep(500);
	} while (access(args[3], F_OK));
	publish(NULL);
	for (long span = 1; span <= atol(args[4]); span++)
		if (pthread_create(&thread, NULL, run_thread, (void *)span) || pthread_join(thread, NULL))
			return 4;
	printf("%ld\n", reused_slots);
	fflush(stdout);
	if (library && dlclose(library))
		return 5;
	do {
		if (pread(file, bytes, sizeof bytes, STAYED) < 0)
			return 6;
		usleep(500);
	} while (!access(args[3], F_OK));
	return 0;
}
