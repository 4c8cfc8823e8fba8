/*
 * OpenTelemetry's process context (OTEP 4719): a page that readers of other processes find by its
 * name, and a payload with the resource of this process. `src/process_context.rs` has the same
 * rules with their reasons.
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

/* Bytes of the page, which has only the header. */
#define BYTES 4096
#define PAYLOAD_BYTES_MAX (64u << 10)
#define NAME "OTEL_CTX"
/*
 * Maximum names of thread attributes: a key number is one byte (OTEP 4947). Maximum bytes of a name
 * that blkkin's reader accepts.
 */
#define KEYS_MAX 256
#define KEY_BYTES_MAX 128

/* Linux 6.3 and 5.17. Older kernels reject them. */
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
	/* Time of publication; 0 during a write. */
	uint64_t number;
	uint64_t payload;
};

_Static_assert(sizeof(struct header) == 32, "the layout of OTEP 4719");

/*
 * Process in which a thread holds the lock (0: none), process that made the page, the page, its
 * payload, and the last number.
 */
static pid_t lock_owner, page_owner;
static struct header *page;
static unsigned char *current_payload;
static uint64_t last_published_ns;

struct bytes {
	size_t size;
	unsigned char at[];
};

/*
 * Content of the last publication: the encoded resource, and the names of thread attributes by
 * number. Names are only added.
 */
static struct bytes *current_resource;
static char *names[KEYS_MAX];
static size_t names_count;

/*
 * Acquires the lock. A lock that another process holds (this one's parent, before the fork) counts
 * as free.
 */
static void acquire_lock(void)
{
	const pid_t own = getpid();

	for (;;) {
		pid_t by = __atomic_load_n(&lock_owner, __ATOMIC_RELAXED);

		if (by != own && __atomic_compare_exchange_n(&lock_owner, &by, own, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		sched_yield();
	}
}

static bool set_name(void)
{
	return !prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, (unsigned long) (uintptr_t) page, (unsigned long) BYTES, NAME);
}

/* Returns whether this process already has such a page. */
static bool is_already_published(void)
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
	if (madvise(page, BYTES, MADV_DONTFORK) || (!is_file && !set_name())) {
		error = errno;
		munmap(page, BYTES);
		return -error;
	}
	/* After a fork the payload of the parent leaks: some hundred bytes. */
	current_payload = NULL;
	page_owner = getpid();
	return 0;
}

/* Bytes of a length-delimited protobuf field with content of this size. */
static size_t field_size(size_t size)
{
	size_t head = 2, left = size;

	while (left >>= 7)
		head++;
	return head + size;
}

static unsigned char *field_head(unsigned char *to, int number, size_t size)
{
	*to++ = (unsigned char) (number << 3 | 2);
	for (; size > 0x7f; size >>= 7)
		*to++ = (unsigned char) (size | 0x80);
	*to++ = (unsigned char) size;
	return to;
}

static unsigned char *text(unsigned char *to, const char *string)
{
	const size_t size = strlen(string);

	return (unsigned char *) memcpy(field_head(to, 1, size), string, size) + size;
}

static size_t text_size(const char *string)
{
	return field_size(strlen(string));
}

/* Bytes of a pair of a key and a value of this size. The value is written after it. */
static size_t pair_size(const char *key, size_t value)
{
	return text_size(key) + field_size(value);
}

static unsigned char *pair(unsigned char *to, int number, const char *key, size_t value)
{
	return field_head(text(field_head(to, number, pair_size(key, value)), key), 2, value);
}

/* Keys by which readers decode thread contexts. */
#define SCHEMA "threadlocal.schema_version"
#define SCHEMA_IS "tlsdesc_v1_dev"
#define KEY_MAP "threadlocal.attribute_key_map"

static struct bytes *make_resource(const struct blkkin_attribute *attributes, size_t count)
{
	size_t size = 0, each;
	struct bytes *resource;
	unsigned char *at;

	for (each = 0; each < count; each++)
		size += field_size(pair_size(attributes[each].key, text_size(attributes[each].value)));
	resource = malloc(sizeof *resource + size);
	if (!resource)
		return NULL;
	resource->size = size;
	at = resource->at;
	for (each = 0; each < count; each++)
		at = text(pair(at, 1, attributes[each].key, text_size(attributes[each].value)), attributes[each].value);
	return resource;
}

/* Encodes the resource and, if threads publish, the first `count` names of their attributes. */
static int make_payload(const struct bytes *resource, size_t count, unsigned char **payload, size_t *size)
{
	const bool threads = !blkkin_publishing();
	size_t list = 0, each;
	unsigned char *at;

	for (each = 0; each < count; each++)
		list += field_size(text_size(names[each]));
	*size = field_size(resource->size);
	if (threads)
		*size += field_size(pair_size(SCHEMA, text_size(SCHEMA_IS))) + field_size(pair_size(KEY_MAP, field_size(list)));
	if (*size > PAYLOAD_BYTES_MAX)
		return -E2BIG;
	*payload = malloc(*size);
	if (!*payload)
		return -ENOMEM;
	at = (unsigned char *) memcpy(field_head(*payload, 1, resource->size), resource->at, resource->size) + resource->size;
	if (!threads)
		return 0;
	at = text(pair(at, 2, SCHEMA, text_size(SCHEMA_IS)), SCHEMA_IS);
	at = field_head(pair(at, 2, KEY_MAP, field_size(list)), 5, list);
	for (each = 0; each < count; each++)
		at = text(field_head(at, 1, text_size(names[each])), names[each]);
	return 0;
}

static void write_page(unsigned char *payload, size_t size)
{
	struct timespec now;
	uint64_t number;

	clock_gettime(CLOCK_BOOTTIME, &now);
	number = (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
	if (number <= last_published_ns)
		number = last_published_ns + 1;
	last_published_ns = number;
	__atomic_store_n(&page->number, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(&page->payload, (uint64_t) (uintptr_t) payload, __ATOMIC_RELAXED);
	__atomic_store_n(&page->size, (uint32_t) size, __ATOMIC_RELAXED);
	page->version = 2;
	memcpy(page->signature, NAME, sizeof page->signature);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(&page->number, number, __ATOMIC_RELAXED);
	/* By the standard this notifies readers of an update. Kernels without names refuse it. */
	set_name();
	/*
	 * A reader that copies the old payload at this time discards the copy, because the number
	 * changed.
	 */
	free(current_payload);
	current_payload = payload;
}

static bool is_off(void)
{
	const char *enabled = getenv("BLKKIN_UST_CONTEXT");

	return enabled && !strcmp(enabled, "0");
}

/* Publishes while the caller holds the lock. */
static int publish(const struct bytes *resource, size_t count)
{
	unsigned char *payload;
	size_t size;
	int error = page_owner == getpid() ? 0 : is_already_published() ? -EBUSY : make_page();

	if (!error)
		error = make_payload(resource, count, &payload, &size);
	if (!error)
		write_page(payload, size);
	return error;
}

static void release_lock(void)
{
	__atomic_store_n(&lock_owner, 0, __ATOMIC_RELEASE);
}

int blkkin_publish_process(const struct blkkin_attribute *attributes, size_t count)
{
	struct bytes *resource, *old;
	int error;

	if (is_off())
		return -ECANCELED;
	resource = make_resource(attributes, count);
	if (!resource)
		return -ENOMEM;
	acquire_lock();
	error = publish(resource, names_count);
	old = resource;
	if (!error) {
		old = current_resource;
		current_resource = resource;
	}
	release_lock();
	free(old);
	return error;
}

int blkkin_thread_key(const char *name)
{
	static const struct bytes empty;
	size_t at;
	int error = is_off() ? -ECANCELED : blkkin_publishing();
	char *own;

	if (error)
		return error;
	if (!*name || strlen(name) > KEY_BYTES_MAX)
		return -EINVAL;
	acquire_lock();
	for (at = 0; at < names_count && strcmp(names[at], name); at++)
		;
	if (at == names_count) {
		own = at < KEYS_MAX ? strdup(name) : NULL;
		error = own ? 0 : at < KEYS_MAX ? -ENOMEM : -ENOSPC;
		if (!error) {
			names[at] = own;
			error = publish(current_resource ? current_resource : &empty, at + 1);
			if (error)
				free(own);
			else
				names_count = at + 1;
		}
	}
	release_lock();
	return error ? error : (int) at;
}
