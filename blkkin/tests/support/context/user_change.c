/*
 * A process that is forked from one with a context and changes its user. As in writer.c, each call's offset
 * encodes its span.
 *
 * user_change FILE GO GO2 USER CALLS
 *
 * Warm-up: calls for one span until GO exists. Then a child becomes USER, makes calls for span 7 until GO2
 * exists, and then CALLS calls for span 9.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thread_context.h"

#define WARM_UP (1L << 40)

static int file;

static void call(long span)
{
	char byte;

	if (pread(file, &byte, 1, span) < 0)
		abort();
}

int main(int count, char **args)
{
	static struct record record;
	int status;

	if (count < 6 || (file = open(args[1], O_RDONLY)) < 0)
		return 2;
	fill(&record, WARM_UP);
	*slot() = &record;
	do {
		call(WARM_UP);
		usleep(500);
	} while (access(args[2], F_OK));
	if (fork() == 0) {
		uid_t user = atoi(args[4]);

		if (setresuid(user, user, user))
			_exit(3);
		fill(&record, 7);
		do {
			call(7);
			usleep(500);
		} while (access(args[3], F_OK));
		fill(&record, 9);
		for (long i = 0; i < atol(args[5]); i++)
			call(9);
		_exit(0);
	}
	if (wait(&status) < 0 || status != 0)
		return 4;
	for (long i = 0; i < atol(args[5]); i++)
		call(WARM_UP);
	return 0;
}
