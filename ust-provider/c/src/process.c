/*
 * OpenTelemetry's process context (OTEP 4719): a page that readers outside find by its name, and a payload that says who this process is.
 * `src/process.rs` has the same, with the same rules, and says why they are so.
 */
#define _GNU_SOURCE
#include <blkkin/ust.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* Of the page: the payload lies elsewhere. */
#define BYTES 4096
#define PAYLOAD_BYTES_MAX (64u << 10)
#define NAME "OTEL_CTX"

/* Linux 6.3 and 5.17; older kernels refuse them. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

struct header {
	char signature[8];
	uint32_t version, size;
	/* When it was published; 0: it is being written. */
	uint64_t number;
	uint64_t payload;
};

_Static_assert(sizeof(struct header) == 32, "as OTEP 4719 has it");

/* The process in which a thread is at it (0: none), the page, whose process's it is, its payload, and the last number. */
static pid_t holder, page_of;
static struct header *page;
static unsigned char *payload_now;
static uint64_t last;

/* One thread at a time; who held it in the process that this one was forked from does not count. */
static void hold(void)
{
	const pid_t own = getpid();

	for (;;) {
		pid_t by = __atomic_load_n(&holder, __ATOMIC_RELAXED);

		if (by != own && __atomic_compare_exchange_n(&holder, &by, own, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		sched_yield();
	}
}

static bool has_name(void)
{
	return !prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, (unsigned long) (uintptr_t) page, (unsigned long) BYTES, NAME);
}

/* Whether this process has such a page already. */
static bool is_taken(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char *line = NULL;
	size_t room = 0;
	bool found = false;

	while (maps && !found && getline(&line, &room, maps) > 0)
		found = strstr(line, ":" NAME) != NULL;
	free(line);
	if (maps)
		fclose(maps);
	return found;
}

static int make_page(void)
{
	int file = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL), error;
	bool is_file;

	if (file < 0)
		file = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	is_file = file >= 0 && !ftruncate(file, BYTES);
	page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | (is_file ? 0 : MAP_ANONYMOUS), is_file ? file : -1, 0);
	error = errno;
	if (file >= 0)
		close(file);
	if (page == MAP_FAILED)
		return -error;
	if (madvise(page, BYTES, MADV_DONTFORK) || (!is_file && !has_name())) {
		error = errno;
		munmap(page, BYTES);
		return -error;
	}
	/* What the process that this one was forked from pointed at is lost: some hundred bytes. */
	payload_now = NULL;
	page_of = getpid();
	return 0;
}

/* Bytes of a field of protobuf whose content has so many. */
static size_t whole(size_t size)
{
	size_t head = 2, left = size;

	while (left >>= 7)
		head++;
	return head + size;
}

static unsigned char *head(unsigned char *to, int number, size_t size)
{
	*to++ = (unsigned char) (number << 3 | 2);
	for (; size > 0x7f; size >>= 7)
		*to++ = (unsigned char) (size | 0x80);
	*to++ = (unsigned char) size;
	return to;
}

static unsigned char *text(unsigned char *to, const char *said)
{
	const size_t size = strlen(said);

	return (unsigned char *) memcpy(head(to, 1, size), said, size) + size;
}

/* A pair of a key and a value that is a text, or, without one, an empty list. */
static size_t pair_size(const char *key, const char *value)
{
	return whole(strlen(key)) + whole(whole(value ? strlen(value) : 0));
}

static unsigned char *pair(unsigned char *to, int number, const char *key, const char *value)
{
	to = text(head(to, number, pair_size(key, value)), key);
	to = head(to, 2, whole(value ? strlen(value) : 0));
	return value ? text(to, value) : head(to, 5, 0);
}

/* What tells readers of threads how to read them. */
static const char *const threads[][2] = {
	{ "threadlocal.schema_version", "tlsdesc_v1_dev" },
	{ "threadlocal.attribute_key_map", NULL },
};

static unsigned char *make_payload(const struct blkkin_attribute *attributes, size_t count, size_t *size)
{
	size_t resource = 0, beside = blkkin_publishing() ? 0 : sizeof threads / sizeof *threads, each;
	unsigned char *payload, *at;

	for (each = 0; each < count; each++)
		resource += whole(pair_size(attributes[each].key, attributes[each].value));
	*size = whole(resource);
	for (each = 0; each < beside; each++)
		*size += whole(pair_size(threads[each][0], threads[each][1]));
	payload = *size > PAYLOAD_BYTES_MAX ? NULL : malloc(*size);
	if (!payload)
		return NULL;
	at = head(payload, 1, resource);
	for (each = 0; each < count; each++)
		at = pair(at, 1, attributes[each].key, attributes[each].value);
	for (each = 0; each < beside; each++)
		at = pair(at, 2, threads[each][0], threads[each][1]);
	return payload;
}

static void put(unsigned char *payload, size_t size)
{
	struct timespec now;
	uint64_t number;

	clock_gettime(CLOCK_BOOTTIME, &now);
	number = (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
	if (number <= last)
		number = last + 1;
	last = number;
	__atomic_store_n(&page->number, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(&page->payload, (uint64_t) (uintptr_t) payload, __ATOMIC_RELAXED);
	__atomic_store_n(&page->size, (uint32_t) size, __ATOMIC_RELAXED);
	page->version = 2;
	memcpy(page->signature, NAME, sizeof page->signature);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(&page->number, number, __ATOMIC_RELAXED);
	/* How it is told that something is new; kernels without names refuse it. */
	has_name();
	/* A reader that is at it takes nothing of it. */
	free(payload_now);
	payload_now = payload;
}

int blkkin_publish_process(const struct blkkin_attribute *attributes, size_t count)
{
	const char *said = getenv("BLKKIN_UST_CONTEXT");
	unsigned char *payload;
	size_t size;
	int error = 0;

	if (said && !strcmp(said, "0"))
		return -ECANCELED;
	payload = make_payload(attributes, count, &size);
	if (!payload)
		return size > PAYLOAD_BYTES_MAX ? -E2BIG : -ENOMEM;
	hold();
	if (page_of != getpid())
		error = is_taken() ? -EBUSY : make_page();
	if (error)
		free(payload);
	else
		put(payload, size);
	__atomic_store_n(&holder, 0, __ATOMIC_RELEASE);
	return error;
}
