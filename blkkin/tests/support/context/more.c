/*
 * A process whose threads say more of their work than a span, and calls in between, by its words. As with writer.c each call's
 * offset says for which span it is made.
 *
 *	program FILE WORD...
 *
 * keys=A,B,..	the process says which names its threads' numbers have, and that it is "more"
 * schema=S	and by which schema from then on; before: tls_v1
 * await=PATH	works for a span of its own, AWAITED, and says nothing else, until PATH is there
 * say=N:K=V;..	works for span N (0: for none) with these entries behind one another, and reads 100 times at N
 * size=N:BYTES	the same with so many bytes of entries in all, of number 0 and then 1
 * raw=N:HEX	the same with these bytes
 * late=N	the same where the entries' page is not there when the call begins, and is when it ends
 * never=N	the same where it is not there at all
 * many=S,C	four threads work for spans 1 to S, each for another, with C reads for each and some other calls; what they say is by the span
 */
#define _GNU_SOURCE
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "process.h"
#include "thread.h"

#define PAGE 4096
#define READS 100
#define AWAITED (1L << 40 | 1)

struct more {
	struct record head;
	unsigned char entries[1 << 16];
};

static int file;
static const char *path, *schema = "tls_v1";
static long spans, calls;
static atomic_long next;

static void publish(char *names)
{
	unsigned char list[SIZE], both[SIZE], *payload = payloads[turn ^= 1];
	size_t at = 0, size = attribute(payload, "service.name", "more");
	unsigned char resource[SIZE];

	memcpy(resource, payload, size);
	size = field(payload, 1, resource, size);
	for (char *name = strsep(&names, ","); name; name = strsep(&names, ",")) {
		size_t text = field(both, 1, name, strlen(name));

		at += field(list + at, 1, both, text);
	}
	/* A pair of a key and a list (5), and one of a key and a text (1), both beside the resource (2). */
	unsigned char pair[SIZE], value[SIZE];
	size_t all = field(pair, 1, "threadlocal.attribute_key_map", 29);
	size_t bytes = field(value, 5, list, at);

	all += field(pair + all, 2, value, bytes);
	size += field(payload + size, 2, pair, all);
	all = field(pair, 1, "threadlocal.schema_version", 26);
	bytes = field(value, 1, schema, strlen(schema));
	all += field(pair + all, 2, value, bytes);
	size += field(payload + size, 2, pair, all);
	put(payload, size, 0);
}

static size_t entry(unsigned char *to, int key, const char *value)
{
	size_t length = strlen(value);

	to[0] = (unsigned char) key;
	to[1] = (unsigned char) length;
	memcpy(to + 2, value, length);
	return length + 2;
}

static void begin(struct more *more, long span)
{
	more->head.valid = 0;
	atomic_signal_fence(memory_order_seq_cst);
	fill(&more->head, (uint64_t) span);
	if (!span)
		memset(&more->head, 0, 24);
	more->head.valid = 0;
	*(struct record *volatile *) slot() = &more->head;
}

static void end(struct more *more, size_t bytes)
{
	more->head.attributes = (uint16_t) bytes;
	atomic_signal_fence(memory_order_seq_cst);
	*(volatile uint8_t *) &more->head.valid = 1;
}

static void reads(char *to, long at, long times)
{
	while (times--)
		if (pread(file, to, 1, at) < 0)
			exit(1);
}

static void say(struct more *more, char *words, int raw)
{
	long span = strtol(words, &words, 10);
	size_t bytes = 0;
	char byte, *next;

	begin(more, span);
	words++;
	if (raw)
		for (unsigned one; sscanf(words, "%2x", &one) == 1; words += 2)
			more->entries[bytes++] = (unsigned char) one;
	else
		for (next = strsep(&words, ";"); next && *next; next = strsep(&words, ";")) {
			char *value = strchr(next, '=');

			bytes += entry(more->entries + bytes, atoi(next), value + 1);
		}
	end(more, bytes);
	reads(&byte, span, READS);
	more->head.valid = 0;
}

static void say_much(struct more *more, char *words)
{
	long span = strtol(words, &words, 10), left = strtol(words + 1, NULL, 10), bytes = 0;
	char byte;

	begin(more, span);
	memset(more->entries, 'x', sizeof more->entries);
	for (int key = 0; left - bytes >= 2; key = 1) {
		long length = left - bytes - 2;

		more->entries[bytes] = (unsigned char) key;
		more->entries[bytes + 1] = (unsigned char) (length > 255 ? 255 : length);
		bytes += 2 + more->entries[bytes + 1];
	}
	end(more, (size_t) left);
	reads(&byte, span, READS);
	more->head.valid = 0;
}

/* The record ends a page, and what is behind it lies on the next. */
static void say_late(long span, int never)
{
	int paged = memfd_create("paged", 0);
	char *pages = ftruncate(paged, 2 * PAGE) ? MAP_FAILED
						 : mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, paged, 0);
	struct more *more;
	size_t bytes;

	if (pages == MAP_FAILED)
		exit(2);
	more = (struct more *) (pages + PAGE - sizeof more->head);
	begin(more, span);
	bytes = entry(more->entries, 0, "late");
	end(more, bytes);
	if (never)
		munmap(pages + PAGE, PAGE);
	for (int turn = 0; turn < READS; turn++) {
		if (!never && madvise(pages + PAGE, PAGE, MADV_DONTNEED))
			exit(3);
		/* The call itself has the page brought in. */
		reads(never ? pages : pages + PAGE + 100, span, 1);
	}
	*(struct record *volatile *) slot() = NULL;
}

/* What a span's threads say: the test knows it too. */
static size_t of_span(unsigned char *to, long span)
{
	char text[256];
	size_t bytes = 0;

	if (span % 4 == 0)
		bytes += entry(to, 0, "stale");
	snprintf(text, sizeof text, "span-%ld", span);
	bytes += entry(to + bytes, 0, text);
	if (span % 3) {
		memset(text, 'x', (size_t) (span % 200));
		text[span % 200] = 0;
		bytes += entry(to + bytes, 1, text);
	}
	if (span % 5 == 0)
		bytes += entry(to + bytes, 2, "\xc3\xa9");
	return bytes;
}

/* Calls with a path, with two, with one that is not in memory when the call begins, with two files, and that submit. */
static void other_calls(char *absent, aio_context_t queue, long span)
{
	char name[256], byte;
	struct io_event done;
	int own;
	loff_t from = span, to = span;
	struct iocb read = { .aio_fildes = (uint32_t) file, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_nbytes = 1 }, *all = &read;

	memset(name, 'n', sizeof name);
	name[span % 250 + 1] = 0;
	access(name, F_OK);
	rename(name, name + 1);
	madvise(absent, PAGE, MADV_DONTNEED);
	own = open(absent, O_RDWR);
	if (own >= 0) {
		copy_file_range(file, &from, own, &to, 1, 0);
		close(own);
	}
	read.aio_buf = (uint64_t) (uintptr_t) &byte;
	if (syscall(SYS_io_submit, queue, 1, &all) != 1)
		exit(6);
	syscall(SYS_io_getevents, queue, 1, 1, &done, NULL);
	/* Of no ring. */
	syscall(SYS_io_uring_enter, -1, 1, 0, 0, NULL, 0);
}

static void *work(void *unused)
{
	struct more more = { .head.valid = 0 };
	int paged = memfd_create("path", 0);
	char byte, *absent = ftruncate(paged, PAGE) ? MAP_FAILED
						     : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, paged, 0);

	aio_context_t queue = 0;

	(void) unused;
	if (absent == MAP_FAILED || syscall(SYS_io_setup, 1, &queue))
		exit(4);
	strcpy(absent, path);
	for (;;) {
		long span = atomic_fetch_add(&next, 1) + 1;

		if (span > spans)
			return NULL;
		begin(&more, span);
		end(&more, of_span(more.entries, span));
		reads(&byte, span, calls);
		other_calls(absent, queue, span);
		/* For none, and with nothing to say. */
		*(struct record *volatile *) slot() = NULL;
		reads(&byte, 0, 1);
	}
}

static void many(char *words)
{
	pthread_t threads[4];

	spans = strtol(words, &words, 10);
	calls = strtol(words + 1, NULL, 10);
	for (int each = 0; each < 4; each++)
		if (pthread_create(&threads[each], NULL, work, NULL))
			exit(5);
	for (int each = 0; each < 4; each++)
		pthread_join(threads[each], NULL);
}

static void await(struct more *more, const char *go)
{
	char byte;

	begin(more, AWAITED);
	end(more, 0);
	do {
		reads(&byte, AWAITED, 1);
		usleep(500);
	} while (access(go, F_OK));
	*(struct record *volatile *) slot() = NULL;
}

int main(int count, char **words)
{
	static struct more more;
	char *value;

	path = words[1];
	file = open(path, O_RDWR);
	for (int n = 2; n < count; n++) {
		value = strchr(words[n], '=') + 1;
		if (!strncmp(words[n], "keys=", 5))
			publish(value);
		else if (!strncmp(words[n], "schema=", 7))
			schema = value;
		else if (!strncmp(words[n], "await=", 6))
			await(&more, value);
		else if (!strncmp(words[n], "size=", 5))
			say_much(&more, value);
		else if (!strncmp(words[n], "say=", 4) || !strncmp(words[n], "raw=", 4))
			say(&more, value, words[n][0] == 'r');
		else if (!strncmp(words[n], "late=", 5) || !strncmp(words[n], "never=", 6))
			say_late(atol(value), words[n][0] == 'n');
		else if (!strncmp(words[n], "many=", 5))
			many(value);
	}
	return 0;
}
