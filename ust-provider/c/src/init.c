/*
 * Connects a process to LTTng, as `src/init.rs` and `src/load.rs` do: explicit, once, and never a reason not to start.
 */
#define _GNU_SOURCE
#include <blkkin/ust.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ids.h"
#include "internal.h"
#include "publish.h"

/* Linux 6.3; without it, a machine with sysctl vm.memfd_noexec = 1 maps no code of the file. */
#ifndef MFD_EXEC
#define MFD_EXEC 0x10u
#endif

static const int off;

const int *blkkin_ust_state[BLKKIN_EVENTS] = {
	&off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off,
};
const struct blkkin_probe *blkkin_ust_probe;

_Static_assert(sizeof blkkin_ust_state / sizeof *blkkin_ust_state == 16, "as many as ust.h says");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* 1 until the first call; what that one gave. */
static int verdict = 1;
static char why[512];
/* The same of what threads publish. */
static int published = 1;
static char why_not_published[512] = "not initialized";
static bool followed;
static uint64_t called_ns, enabled_ns;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static int fail(int error, const char *what, const char *said)
{
	snprintf(why, sizeof why, "%s%s", what, said ? said : "no reason was given");
	return -error;
}

static void publish(const struct blkkin_probe *probe)
{
	int event;

	__atomic_store_n(&blkkin_ust_probe, probe, __ATOMIC_RELEASE);
	for (event = 0; event < BLKKIN_EVENTS; event++)
		__atomic_store_n(&blkkin_ust_state[event], probe->state[event], __ATOMIC_RELEASE);
}

static void withdraw(void)
{
	int event;

	for (event = 0; event < BLKKIN_EVENTS; event++)
		__atomic_store_n(&blkkin_ust_state[event], &off, __ATOMIC_RELEASE);
	__atomic_store_n(&blkkin_ust_probe, NULL, __ATOMIC_RELEASE);
}

/* A child would write into its parent's buffers under its parent's name. */
static void in_child(void)
{
	blkkin_ids_forked();
	pthread_mutex_init(&lock, NULL);
	enabled_ns = 0;
	if (followed)
		return;
	withdraw();
	verdict = fail(ECHILD, "forked from a process that was connected to LTTng: connect after forking, or follow forks",
		       "");
}

static int write_all(int file, const unsigned char *bytes, size_t count)
{
	while (count) {
		ssize_t written = write(file, bytes, count);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return -1;
		bytes += written;
		count -= (size_t) written;
	}
	return 0;
}

/* Copies of us in one process, times two objects, with a wide margin. */
#define NUMBERS_MAX 64

static bool is_loaded(int file, char *path, size_t room)
{
	void *handle;

	snprintf(path, room, "/proc/self/fd/%d", file);
	handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	return handle && !dlclose(handle);
}

/* Loads what is never unloaded. */
static int load(const char *name, const unsigned char *bytes, size_t size, void **handle, char *reason, size_t room)
{
	int taken[NUMBERS_MAX], many = 0, file, error;
	char path[32];

	file = memfd_create(name, MFD_CLOEXEC | MFD_EXEC);
	if (file < 0)
		file = memfd_create(name, MFD_CLOEXEC);
	if (file < 0) {
		error = errno;
		snprintf(reason, room, "no memory file for %s: %s", name, strerror(error));
		return -error;
	}
	if (write_all(file, bytes, size)) {
		error = errno;
		close(file);
		snprintf(reason, room, "cannot write %s: %s", name, strerror(error));
		return -error;
	}
	/* The loader knows objects by the path that they were opened by: behind a number that one of ours had it would find that. */
	while (is_loaded(file, path, sizeof path) && many < NUMBERS_MAX) {
		taken[many++] = file;
		file = fcntl(file, F_DUPFD_CLOEXEC, 0);
	}
	*handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	close(file);
	while (many)
		close(taken[--many]);
	if (!*handle) {
		const char *said = dlerror();

		snprintf(reason, room, "%s", said ? said : "no reason was given");
		return -ELIBACC;
	}
	return 0;
}

static int load_probe(const struct blkkin_probe **probe)
{
	size_t size = (size_t) (blkkin_probe_bytes_end - blkkin_probe_bytes);
	char reason[400];
	void *handle;
	int error;

	if (!size)
		return fail(ENOSYS, "built without LTTng-UST", "");
	error = load("blkkin-probe", blkkin_probe_bytes, size, &handle, reason, sizeof reason);
	if (error)
		return fail(-error, "cannot load LTTng-UST: ", reason);
	*probe = dlsym(handle, "blkkin_probe");
	if (!*probe || (*probe)->abi != BLKKIN_PROBE_ABI || (*probe)->size < sizeof **probe)
		return fail(ELIBACC, "the probe has another interface", "");
	return 0;
}

static int start(const struct blkkin_options *options)
{
	const char *said = getenv("BLKKIN_UST");
	const char *roots = getenv("BLKKIN_UST_ROOTS");
	const struct blkkin_probe *probe = NULL;
	uint32_t rate = options ? options->roots_per_second : 0;
	int error;

	if (said && !strcmp(said, "0"))
		return fail(ECANCELED, "switched off by BLKKIN_UST=0", "");
	called_ns = now_ns();
	error = load_probe(&probe);
	if (error)
		return error;
	if (roots && *roots >= '0' && *roots <= '9')
		rate = (uint32_t) strtoul(roots, NULL, 10);
	if (rate)
		probe->set_rate(rate);
	if (options && options->follow_forks) {
		error = probe->follow_forks();
		if (error)
			return fail(error, "cannot follow forks: ", strerror(error));
		followed = true;
	}
	/* Asked now: in a child of a process with threads it could wait for one of them for ever. */
	if (dlopen("liblttng-ust-fork.so.1", RTLD_NOW | RTLD_NOLOAD))
		followed = true;
	pthread_atfork(NULL, NULL, in_child);
	publish(probe);
	if (blkkin_enabled())
		enabled_ns = now_ns();
	return 0;
}

int blkkin_init(const struct blkkin_options *options)
{
	int result;

	pthread_mutex_lock(&lock);
	if (published == 1) {
		why_not_published[0] = 0;
		published = blkkin_publish_begin(!options || !options->no_thread_context, load, why_not_published,
						 sizeof why_not_published);
	}
	if (verdict == 1)
		verdict = start(options);
	result = verdict;
	pthread_mutex_unlock(&lock);
	return result;
}

const char *blkkin_why(void)
{
	return why;
}

int blkkin_publishing(void)
{
	return published == 1 ? -EAGAIN : published;
}

const char *blkkin_why_not_published(void)
{
	return why_not_published;
}

uint64_t blkkin_seen_enabled(void)
{
	const struct blkkin_probe *probe = __atomic_load_n(&blkkin_ust_probe, __ATOMIC_ACQUIRE);

	return probe ? probe->seen_enabled() : 0;
}

uint64_t blkkin_time_to_enabled_ns(void)
{
	const struct blkkin_probe *probe = __atomic_load_n(&blkkin_ust_probe, __ATOMIC_ACQUIRE);
	uint64_t enabled = enabled_ns;

	if (!enabled && probe)
		enabled = probe->first_enabled_ns();
	return enabled ? enabled - called_ns : 0;
}
