/*
 * A C program that says who it is: as "one" first. Then it prints a line, and says who it is again and again, by turns with a text that
 * is short or long, until its standard input ends. `says taken` has somebody else say it before.
 */
#define _GNU_SOURCE
#include <blkkin/ust.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int publish(const char *name, const char *long_one)
{
	const struct blkkin_attribute attributes[] = { { "service.name", name }, { "long", long_one } };

	return blkkin_publish_process(attributes, 2);
}

int main(int count, char **words)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	static char long_one[3001];
	int file, status, turn;
	pid_t child;

	memset(long_one, 'x', sizeof long_one - 1);
	if (count > 1 && !strcmp(words[1], "taken")) {
		file = memfd_create("OTEL_CTX", MFD_CLOEXEC);
		if (file < 0 || ftruncate(file, 4096) || mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED)
			return 1;
		return printf("%d\n", publish("one", "")) < 0;
	}
	blkkin_init(NULL);
	/* Whatever is said of the process, names of what its threads say stay. */
	if (blkkin_thread_key("http.route") != 0 || publish("one", "") || blkkin_thread_key("user.id") != 1)
		return getenv("BLKKIN_UST_CONTEXT") ? 1 : 2;
	/* A child has none of its parent's, and may say its own. */
	child = fork();
	if (!child)
		_exit(publish("child", "") != 0);
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	printf("%d\n", blkkin_publishing());
	fflush(stdout);
	for (turn = 0; !poll(&input, 1, 0); turn++)
		if (publish(turn & 1 ? "one" : "other", turn & 1 ? "" : long_one))
			return 1;
	return 0;
}
