/*
 * Calls whose offset encodes the span that they belong to: pread64(fd, byte, 1, SPAN), with 0 for no span.
 *
 * writer FILE LIBRARY|- GO THREADS SPANS CALLS STEP [NEXT ...]
 *
 * Warm-up: calls for the span WARM_UP until the file GO exists. Then two threads, one after another or at
 * once, work for each of SPANS spans, STEP apart, and each makes CALLS calls; between two spans a thread
 * makes one call for no span. At the end it forks a child, which makes a call for the span in which it was
 * forked, then one for a span of its own, and then executes NEXT.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thread_context.h"

static struct record **(*slot_address)(void);
static int file;
static long spans, calls, step;
static atomic_long next;

#define WARM_UP (1L << 40 | 1)

static void call(long span)
{
	char byte;

	if (pread(file, &byte, 1, span) < 0)
		abort();
}

/* Empties the slot while the record is written, so that no reader sees a partial record. */
static void enter(struct record *record, long span)
{
	*(struct record *volatile *)slot_address() = NULL;
	atomic_signal_fence(memory_order_seq_cst);
	fill(record, span);
	atomic_signal_fence(memory_order_seq_cst);
	*(struct record *volatile *)slot_address() = record;
}

static void leave(void)
{
	*(struct record *volatile *)slot_address() = NULL;
}

static void *work(void *unused)
{
	struct record records[2];

	(void)unused;
	memset(records, 0, sizeof records);
	for (;;) {
		long number = atomic_fetch_add(&next, 1) / 2 + 1, span = number * step;

		if (number > spans)
			return NULL;
		enter(&records[number % 2], span);
		for (long i = 0; i < calls; i++)
			call(span);
		/* Every third span ends by the record's valid byte instead of the slot. */
		if (number % 3 == 0) {
			records[number % 2].valid = 0;
			atomic_signal_fence(memory_order_seq_cst);
		} else {
			leave();
		}
		call(0);
	}
}

static void warm_up(const char *go)
{
	static struct record record;

	enter(&record, WARM_UP);
	do {
		call(WARM_UP);
		usleep(500);
	} while (access(go, F_OK));
	leave();
	call(0);
}

static void fork_and_exec(char **args)
{
	static struct record record;
	int status;

	enter(&record, (spans + 1) * step);
	call((spans + 1) * step);
	if (fork() == 0) {
		call((spans + 1) * step);
		enter(&record, (spans + 2) * step);
		call((spans + 2) * step);
		if (!args[0])
			_exit(0);
		execv(args[0], args);
		_exit(127);
	}
	call((spans + 1) * step);
	if (wait(&status) < 0 || status != 0)
		abort();
	leave();
	call(0);
}

#ifdef OWN
#define FIND slot
#else
#define FIND NULL
#endif

int main(int count, char **args)
{
	pthread_t threads[64];
	void *library = NULL;
	int threads_count;

	if (count < 8)
		return 2;
	file = open(args[1], O_RDONLY);
	threads_count = atoi(args[4]);
	spans = atol(args[5]);
	calls = atol(args[6]);
	step = atol(args[7]);
	slot_address = FIND;
	if (file < 0 || threads_count > 64)
		return 3;
	call(0);
	if (strcmp(args[2], "-")) {
		library = dlopen(args[2], RTLD_NOW | RTLD_LOCAL);
		slot_address = library ? (struct record **(*)(void))dlsym(library, "slot") : NULL;
		if (!slot_address) {
			fprintf(stderr, "%s\n", dlerror());
			return 4;
		}
	}
	call(0);
	if (!slot_address || !spans)
		return 0;
	warm_up(args[3]);
	for (int i = 0; i < threads_count; i++)
		if (pthread_create(&threads[i], NULL, work, NULL))
			return 5;
	for (int i = 0; i < threads_count; i++)
		pthread_join(threads[i], NULL);
	fork_and_exec(args + 8);
	if (library) {
		if (dlclose(library))
			return 6;
		call(0);
		call(0);
	}
	return 0;
}
