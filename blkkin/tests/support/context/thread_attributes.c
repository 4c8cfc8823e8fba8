/*
 * A process whose threads publish attributes with their span, and make calls in between, by a script of
 * arguments. As in writer.c, each call's offset encodes its span.
 *
 *	program FILE STEP...
 *
 * keys=A,B,..	publishes the names of the threads' attribute keys, and the service name "more"
 * schema=S	publishes schema S from then on; before that it is tls_v1
 * await=PATH	works for the span WARM_UP without attributes until PATH exists
 * set=N:K=V;..	works for span N (0: no span) with these entries in this order, and reads 100 times at offset N
 * size=N:BYTES	the same with BYTES bytes of entries in total, of key 0 and then of key 1
 * raw=N:HEX	the same with these bytes as entries
 * late=N	the same with entries on a page that is absent when the call begins and present when it ends
 * never=N	the same with entries on a page that is never present
 * many=S,C	four threads work for spans 1 to S, each for another, with C reads for each and some other calls;
 *		their attributes are a function of the span
 */
#define _GNU_SOURCE
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "process_context.h"
#include "thread_context.h"

#define PAGE 4096
#define READS 100
#define WARM_UP (1L << 40 | 1)

struct attributed {
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
	/* A pair of a key and a list (5), and one of a key and a text (1), both next to the resource (2). */
	unsigned char pair[SIZE], value[SIZE];
	size_t all = field(pair, 1, "threadlocal.attribute_key_map", 29);
	size_t bytes = field(value, 5, list, at);

	all += field(pair + all, 2, value, bytes);
	size += field(payload + size, 2, pair, all);
	all = field(pair, 1, "threadlocal.schema_version", 26);
	bytes = field(value, 1, schema, strlen(schema));
	all += field(pair + all, 2, value, bytes);
	size += field(payload + size, 2, pair, all);
	publish_payload(payload, size, 0);
}

static size_t entry(unsigned char *to, int key, const char *value)
{
	size_t length = strlen(value);

	to[0] = (unsigned char) key;
	to[1] = (unsigned char) length;
	memcpy(to + 2, value, length);
	return length + 2;
}

static void begin(struct attributed *attributed, long span)
{
	attributed->head.valid = 0;
	atomic_signal_fence(memory_order_seq_cst);
	fill(&attributed->head, (uint64_t) span);
	if (!span)
		memset(&attributed->head, 0, 24);
	attributed->head.valid = 0;
	*(struct record *volatile *) slot() = &attributed->head;
}

static void end(struct attributed *attributed, size_t bytes)
{
	attributed->head.attributes = (uint16_t) bytes;
	atomic_signal_fence(memory_order_seq_cst);
	*(volatile uint8_t *) &attributed->head.valid = 1;
}

static void reads(char *to, long at, long times)
{
	while (times--)
		if (pread(file, to, 1, at) < 0)
			exit(1);
}

static void set_entries(struct attributed *attributed, char *args, int raw)
{
	long span = strtol(args, &args, 10);
	size_t bytes = 0;
	char byte, *next;

	begin(attributed, span);
	args++;
	if (raw)
		for (unsigned one; sscanf(args, "%2x", &one) == 1; args += 2)
			attributed->entries[bytes++] = (unsigned char) one;
	else
		for (next = strsep(&args, ";"); next && *next; next = strsep(&args, ";")) {
			char *value = strchr(next, '=');

			bytes += entry(attributed->entries + bytes, atoi(next), value + 1);
		}
	end(attributed, bytes);
	reads(&byte, span, READS);
	attributed->head.valid = 0;
}

static void set_sized_entries(struct attributed *attributed, char *args)
{
	long span = strtol(args, &args, 10), left = strtol(args + 1, NULL, 10), bytes = 0;
	char byte;

	begin(attributed, span);
	memset(attributed->entries, 'x', sizeof attributed->entries);
	for (int key = 0; left - bytes >= 2; key = 1) {
		long length = left - bytes - 2;

		attributed->entries[bytes] = (unsigned char) key;
		attributed->entries[bytes + 1] = (unsigned char) (length > 255 ? 255 : length);
		bytes += 2 + attributed->entries[bytes + 1];
	}
	end(attributed, (size_t) left);
	reads(&byte, span, READS);
	attributed->head.valid = 0;
}

/* The record ends at the end of a page, and its entries are on the next page. */
static void set_paged_entries(long span, int never)
{
	int paged = memfd_create("paged", 0);
	char *pages = ftruncate(paged, 2 * PAGE) ? MAP_FAILED
						 : mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, paged, 0);
	struct attributed *attributed;
	size_t bytes;

	if (pages == MAP_FAILED)
		exit(2);
	attributed = (struct attributed *) (pages + PAGE - sizeof attributed->head);
	begin(attributed, span);
	bytes = entry(attributed->entries, 0, "late");
	end(attributed, bytes);
	if (never)
		munmap(pages + PAGE, PAGE);
	for (int turn = 0; turn < READS; turn++) {
		if (!never && madvise(pages + PAGE, PAGE, MADV_DONTNEED))
			exit(3);
		/* The call itself brings the page in. */
		reads(never ? pages : pages + PAGE + 100, span, 1);
	}
	*(struct record *volatile *) slot() = NULL;
}

/* Writes the attributes of a span by the rule that the test also computes. */
static size_t attributes_of(unsigned char *to, long span)
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

/* Makes calls with a path, with two paths, with a path that is absent when the call begins, with two files, and that submit. */
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
	/* No ring has this descriptor. */
	syscall(SYS_io_uring_enter, -1, 1, 0, 0, NULL, 0);
}

static void *work(void *unused)
{
	struct attributed attributed = { .head.valid = 0 };
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
		begin(&attributed, span);
		end(&attributed, attributes_of(attributed.entries, span));
		reads(&byte, span, calls);
		other_calls(absent, queue, span);
		/* For no span, and without attributes. */
		*(struct record *volatile *) slot() = NULL;
		reads(&byte, 0, 1);
	}
}

static void many(char *args)
{
	pthread_t threads[4];

	spans = strtol(args, &args, 10);
	calls = strtol(args + 1, NULL, 10);
	for (int each = 0; each < 4; each++)
		if (pthread_create(&threads[each], NULL, work, NULL))
			exit(5);
	for (int each = 0; each < 4; each++)
		pthread_join(threads[each], NULL);
}

static void warm_up(struct attributed *attributed, const char *go)
{
	char byte;

	begin(attributed, WARM_UP);
	end(attributed, 0);
	do {
		reads(&byte, WARM_UP, 1);
		usleep(500);
	} while (access(go, F_OK));
	*(struct record *volatile *) slot() = NULL;
}

int main(int count, char **args)
{
	static struct attributed attributed;
	char *value;

	path = args[1];
	file = open(path, O_RDWR);
	for (int n = 2; n < count; n++) {
		value = strchr(args[n], '=') + 1;
		if (!strncmp(args[n], "keys=", 5))
			publish(value);
		else if (!strncmp(args[n], "schema=", 7))
			schema = value;
		else if (!strncmp(args[n], "await=", 6))
			warm_up(&attributed, value);
		else if (!strncmp(args[n], "size=", 5))
			set_sized_entries(&attributed, value);
		else if (!strncmp(args[n], "set=", 4) || !strncmp(args[n], "raw=", 4))
			set_entries(&attributed, value, args[n][0] == 'r');
		else if (!strncmp(args[n], "late=", 5) || !strncmp(args[n], "never=", 6))
			set_paged_entries(atol(value), args[n][0] == 'n');
		else if (!strncmp(args[n], "many=", 5))
			many(value);
	}
	return 0;
}
