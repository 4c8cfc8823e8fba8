/* Calls whose offset says for which span they were made: pread64(fd, byte, 1, SPAN), and 0 where for none.
 *
 * writer FILE LIBRARY|- GO THREADS SPANS CALLS STEP [NEXT ...]: for one span, AWAITED, there are calls until the file GO is there. Then each of SPANS spans, STEP apart, is worked for by two of the threads, one after
 * another or at once, with CALLS calls by each; a thread calls once for none between two spans. At the end a child is forked, which
 * goes on for the span in which it was forked and then for one of its own; and becomes NEXT. */
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

#include "thread.h"

static struct record **(*find)(void);
static int file;
static long spans, calls, step;
static atomic_long next;

#define AWAITED (1L << 40 | 1)

static void call(long span)
{
	char byte;

	if (pread(file, &byte, 1, span) < 0)
		abort();
}

/* The slot is emptied while the record is written, so that nobody sees a half. */
static void enter(struct record *record, long span)
{
	*(struct record *volatile *)find() = NULL;
	atomic_signal_fence(memory_order_seq_cst);
	fill(record, span);
	atomic_signal_fence(memory_order_seq_cst);
	*(struct record *volatile *)find() = record;
}

static void leave(void)
{
	*(struct record *volatile *)find() = NULL;
}

static void *work(void *unused)
{
	struct record records[2];

	(void)unused;
	memset(records, 0, sizeof records);
	for (;;) {
		long turn = atomic_fetch_add(&next, 1) / 2 + 1, span = turn * step;

		if (turn > spans)
			return NULL;
		enter(&records[turn % 2], span);
		for (long i = 0; i < calls; i++)
			call(span);
		/* Not by the slot alone: by the record too. */
		if (turn % 3 == 0) {
			records[turn % 2].valid = 0;
			atomic_signal_fence(memory_order_seq_cst);
		} else {
			leave();
		}
		call(0);
	}
}

static void await(const char *go)
{
	static struct record record;

	enter(&record, AWAITED);
	do {
		call(AWAITED);
		usleep(500);
	} while (access(go, F_OK));
	leave();
	call(0);
}

static void fork_and_exec(char **words)
{
	static struct record record;
	int status;

	enter(&record, (spans + 1) * step);
	call((spans + 1) * step);
	if (fork() == 0) {
		call((spans + 1) * step);
		enter(&record, (spans + 2) * step);
		call((spans + 2) * step);
		if (!words[0])
			_exit(0);
		execv(words[0], words);
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

int main(int count, char **words)
{
	pthread_t threads[64];
	void *library = NULL;
	int many;

	if (count < 8)
		return 2;
	file = open(words[1], O_RDONLY);
	many = atoi(words[4]);
	spans = atol(words[5]);
	calls = atol(words[6]);
	step = atol(words[7]);
	find = FIND;
	if (file < 0 || many > 64)
		return 3;
	call(0);
	if (strcmp(words[2], "-")) {
		library = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
		find = library ? (struct record **(*)(void))dlsym(library, "slot") : NULL;
		if (!find) {
			fprintf(stderr, "%s\n", dlerror());
			return 4;
		}
	}
	call(0);
	if (!find || !spans)
		return 0;
	await(words[3]);
	for (int i = 0; i < many; i++)
		if (pthread_create(&threads[i], NULL, work, NULL))
			return 5;
	for (int i = 0; i < many; i++)
		pthread_join(threads[i], NULL);
	fork_and_exec(words + 8);
	if (library) {
		if (dlclose(library))
			return 6;
		call(0);
		call(0);
	}
	return 0;
}
