/*
 * A process that says who it is (OpenTelemetry's process context), and calls in between, by its words:
 *
 *	program FILE WORD...
 *
 * say=NAME	says that it is NAME: for the first time by a file in memory, then in its place
 * anon=NAME	the same by memory with a name; ends with 77 where the kernel gives none
 * odd=KIND	what is there is not what the standard has: another version, a size without end, an address of nothing, bytes of nothing;
 *		or it is being written for ever
 * await=PATH	reads at offset 99 until PATH is there
 * read=N	reads a byte of FILE at offset N, 100 times
 * fork=N	a child does
 * exec		becomes this program again, with the words that are left
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/wait.h>

#include "process.h"

static void publish(const char *name, int by_name)
{
	unsigned char resource[SIZE], *payload = payloads[turn ^= 1];
	size_t size = attribute(resource, "service.name", name);

	size += attribute(resource + size, "service.instance.id", "one");
	put(payload, field(payload, 1, resource, size), by_name);
}

static void odd(const char *kind)
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

int main(int count, char **words)
{
	int file = open(words[1], O_RDONLY), n;
	const char *value;
	pid_t child;

	for (n = 2; n < count; n++) {
		value = strchr(words[n], '=');
		value = value ? value + 1 : "";
		if (!strncmp(words[n], "say=", 4)) {
			publish(value, 0);
		} else if (!strncmp(words[n], "anon=", 5)) {
			publish(value, 1);
		} else if (!strncmp(words[n], "odd=", 4)) {
			odd(value);
		} else if (!strncmp(words[n], "await=", 6)) {
			for (; access(value, F_OK); usleep(500))
				reads(file, 99, 1);
		} else if (!strncmp(words[n], "read=", 5)) {
			reads(file, atol(value), 100);
		} else if (!strncmp(words[n], "fork=", 5)) {
			child = fork();
			if (!child) {
				reads(file, atol(value), 100);
				_exit(0);
			}
			waitpid(child, NULL, 0);
		} else if (!strcmp(words[n], "exec")) {
			words[n - 1] = words[0];
			words[n] = words[1];
			execv("/proc/self/exe", words + n - 1);
			return 1;
		}
	}
	return 0;
}
