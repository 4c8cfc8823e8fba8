/* A process that is forked from one that publishes, and becomes another user. As with writer.c each call's offset says for which span
 * it is to be taken.
 *
 * changes FILE GO GO2 USER CALLS: calls for one span until GO is there; then a child becomes USER, calls for span 7 until GO2 is there,
 * and then CALLS times for span 9. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thread.h"

#define AWAITED (1L << 40)

static int file;

static void call(long span)
{
	char byte;

	if (pread(file, &byte, 1, span) < 0)
		abort();
}

int main(int count, char **words)
{
	static struct record record;
	int status;

	if (count < 6 || (file = open(words[1], O_RDONLY)) < 0)
		return 2;
	fill(&record, AWAITED);
	*slot() = &record;
	do {
		call(AWAITED);
		usleep(500);
	} while (access(words[2], F_OK));
	if (fork() == 0) {
		uid_t user = atoi(words[4]);

		if (setresuid(user, user, user))
			_exit(3);
		fill(&record, 7);
		do {
			call(7);
			usleep(500);
		} while (access(words[3], F_OK));
		fill(&record, 9);
		for (long i = 0; i < atol(words[5]); i++)
			call(9);
		_exit(0);
	}
	if (wait(&status) < 0 || status != 0)
		return 4;
	for (long i = 0; i < atol(words[5]); i++)
		call(AWAITED);
	return 0;
}
