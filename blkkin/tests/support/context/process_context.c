/*
 * A process that publishes its process context (OTEP 4719), and makes calls in between, by a script of
 * arguments:
 *
 *	program FILE STEP...
 *
 * name=NAME	publishes the service name NAME: the first time in a memfd, then in the same memory
 * anon=NAME	the same in named anonymous memory; exits with 77 if the kernel has none
 * odd=KIND	makes the context invalid: another version, a huge size, an invalid address, invalid bytes, or
 *		permanently being written
 * await=PATH	reads at offset 99 until PATH exists
 * read=N	reads a byte of FILE at offset N, 100 times
 * fork=N	a child does the same
 * exec		executes this program again with the remaining arguments
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/wait.h>

#include "process_context.h"

static void publish(const char *name, int named_anonymous)
{
	unsigned char resource[SIZE], *payload = payloads[turn ^= 1];
	size_t size = attribute(resource, "service.name", name);

	size += attribute(resource + size, "service.instance.id", "one");
	publish_payload(payload, field(payload, 1, resource, size), named_anonymous);
}

static void invalidate(const char *kind)
{
	header->number = 0;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!strcmp(kind, "version"))
		header->version = 3;
	else if (!strcmp(kind, "size"))
		header->size = UINT32_MAX;
	else if (!strcmp(kind, "nowhere"))
		header->payload = 8;
	else
		memset(payloads[turn], 0xff, SIZE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	header->number = strcmp(kind, "writing") ? now() : 0;
}

static void reads(int file, long at, int times)
{
	char byte;

	while (times--)
		if (pread(file, &byte, 1, at) < 0)
			exit(1);
}

int main(int count, char **args)
{
	int file = open(args[1], O_RDONLY), n;
	const char *value;
	pid_t child;

	for (n = 2; n < count; n++) {
		value = strchr(args[n], '=');
		value = value ? value + 1 : "";
		if (!strncmp(args[n], "name=", 5)) {
			publish(value, 0);
		} else if (!strncmp(args[n], "anon=", 5)) {
			publish(value, 1);
		} else if (!strncmp(args[n], "odd=", 4)) {
			invalidate(value);
		} else if (!strncmp(args[n], "await=", 6)) {
			for (; access(value, F_OK); usleep(500))
				reads(file, 99, 1);
		} else if (!strncmp(args[n], "read=", 5)) {
			reads(file, atol(value), 100);
		} else if (!strncmp(args[n], "fork=", 5)) {
			child = fork();
			if (!child) {
				reads(file, atol(value), 100);
				_exit(0);
			}
			waitpid(child, NULL, 0);
		} else if (!strcmp(args[n], "exec")) {
			args[n - 1] = args[0];
			args[n] = args[1];
			execv("/proc/self/exe", args + n - 1);
			return 1;
		}
	}
	return 0;
}
