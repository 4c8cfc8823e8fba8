/*
 * A process whose first thread ends while others continue.
 *
 * leader_exit FILE GO CALLS
 *
 * Warm-up: a second thread makes calls for the span WARM_UP until the file GO exists, and the first thread
 * ends meanwhile. Then a third thread, which has made no call before, makes CALLS calls, each for a span of
 * its own.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "thread_context.h"

#define WARM_UP (1L << 40 | 1)
/* Time in us that the kernel may take to show that a thread has ended. */
#define EXIT_VISIBLE 300000

static char **args;
static int file;
static pthread_t first;

static void call(struct record *record, long span)
{
	char byte;

	*(struct record *volatile *)slot() = NULL;
	atomic_signal_fence(memory_order_seq_cst);
	fill(record, span);
	atomic_signal_fence(memory_order_seq_cst);
	*(struct record *volatile *)slot() = record;
	if (pread(file, &byte, 1, span) < 0)
		abort();
}

static void *third(void *nothing)
{
	static struct record record;

	for (long span = 1; span <= atol(args[3]); span++)
		call(&record, span);
	return nothing;
}

static void *second(void *nothing)
{
	static struct record record;
	pthread_t thread;

	do {
		call(&record, WARM_UP);
		usleep(500);
	} while (access(args[2], F_OK));
	if (pthread_join(first, NULL))
		abort();
	usleep(EXIT_VISIBLE);
	if (pthread_create(&thread, NULL, third, nothing) || pthread_join(thread, NULL))
		abort();
	exit(0);
}

int main(int count, char **program_args)
{
	pthread_t thread;

	args = program_args;
	first = pthread_self();
	if (count < 4 || (file = open(args[1], O_RDONLY)) < 0 || pthread_create(&thread, NULL, second, NULL))
		return 2;
	while (access(args[2], F_OK))
		usleep(500);
	pthread_exit(NULL);
}
