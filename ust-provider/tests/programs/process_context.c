/*
 * Publishes a process context, first with the name "one". Then it prints a line and publishes
 * contexts with a short and a long text alternately, until its standard input ends. With the
 * argument `already_published` another library has published one before.
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

static int publish(const char *name, const char *long_text)
{
	const struct blkkin_attribute attributes[] = { { "service.name", name }, { "long", long_text } };

	return blkkin_publish_process(attributes, 2);
}

int main(int count, char **args)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	static char long_text[3001];
	int file, status, update;
	pid_t child;

	memset(long_text, 'x', sizeof long_text - 1);
	if (count > 1 && !strcmp(args[1], "already_published")) {
		file = memfd_create("OTEL_CTX", MFD_CLOEXEC);
		if (file < 0 || ftruncate(file, 4096) || mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED)
			return 1;
		return printf("%d\n", publish("one", "")) < 0;
	}
	blkkin_init(NULL);
	/* The names of thread attributes stay in every later process context. */
	if (blkkin_thread_key("http.route") != 0 || publish("one", "") || blkkin_thread_key("user.id") != 1)
		return getenv("BLKKIN_UST_CONTEXT") ? 1 : 2;
	/* A child has no process context of its parent, and can publish its own. */
	child = fork();
	if (!child)
		_exit(publish("child", "") != 0);
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	printf("%d\n", blkkin_publishing());
	fflush(stdout);
	for (update = 0; !poll(&input, 1, 0); update++)
		if (publish(update & 1 ? "one" : "other", update & 1 ? "" : long_text))
			return 1;
	return 0;
}
