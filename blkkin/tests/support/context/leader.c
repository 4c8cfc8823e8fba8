/* The first thread ends, and others go on.
 *
 * leader FILE GO CALLS: a second thread calls for one span, AWAITED, until the file GO is there, and the first ends meanwhile. Then a third, which has
 * not called before, makes CALLS of them, each for a span of its own. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "thread.h"

#define AWAITED (1L << 40 | 1)
/* How long the end of a thread may take to be known to whoever looks, in us. */
#define KNOWN 300000

static char **words;
static int file;
static pthread_t first;

static void call(struct record *record, long span)
{
	char into;

	*(struct record *volatile *)slot() = NULL;
	atomic_signal_fence(memory_order_seq_cst);
	fill(record, span);
	atomic_signal_fence(memory_order_seq_cst);
	*(struct record *volatile *)slot() = record;
	if (pread(file, &into, 1, span) < 0)
		abort();
}

static void *third(void *nothing)
{
	static struct record record;

	for (long span = 1; span <= atol(words[3]); span++)
		call(&record, span);
	return nothing;
}

static void *second(void *nothing)
{
	static struct record record;
	pthread_t thread;

	do {
		call(&record, AWAITED);
		usleep(500);
	} while (access(words[2], F_OK));
	if (pthread_join(first, NULL))
		abort();
	usleep(KNOWN);
	if (pthread_create(&thread, NULL, third, nothing) || pthread_join(thread, NULL))
		abort();
	exit(0);
}

int main(int count, char **all)
{
	pthread_t thread;

	words = all;
	first = pthread_self();
	if (count < 4 || (file = open(words[1], O_RDONLY)) < 0 || pthread_create(&thread, NULL, second, NULL))
		return 2;
	while (access(words[2], F_OK))
		usleep(500);
	pthread_exit(NULL);
}
