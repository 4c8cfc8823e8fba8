/*
 * Connection of the process to LTTng, as in `src/init.rs` and `src/load.rs`: explicit, once, and
 * never a reason not to start.
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
#include "thread_context.h"

/*
 * Linux 6.3. Without it, a machine with sysctl vm.memfd_noexec = 1 does not map the file as code.
 */
#ifndef MFD_EXEC
#define MFD_EXEC 0x10u
#endif

static const int off;

const int *blkkin_ust_state[BLKKIN_EVENTS] = {
	&off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off, &off,
};
const struct blkkin_probe *blkkin_ust_probe;

_Static_assert(sizeof blkkin_ust_state / sizeof *blkkin_ust_state == 15, "the length that ust.h declares");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Result of the first call; 1 before it. */
static int init_result = 1;
static char init_error[512];
/* Result of the start of publishing; 1 before it. */
static int publishing = 1;
static char publishing_error[512] = "not initialized";
static bool follows_forks;
static uint64_t called_ns, enabled_ns;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static int fail(int error, const char *what, const char *reason)
{
	snprintf(init_error, sizeof init_error, "%s%s", what, reason ? reason : "no reason was given");
	return -error;
}

static void install(const struct blkkin_probe *probe)
{
	int event;

	__atomic_store_n(&blkkin_ust_probe, probe, __ATOMIC_RELEASE);
	for (event = 0; event < BLKKIN_EVENTS; event++)
		__atomic_store_n(&blkkin_ust_state[event], probe->state[event], __ATOMIC_RELEASE);
}

static void uninstall(void)
{
	int event;

	for (event = 0; event < BLKKIN_EVENTS; event++)
		__atomic_store_n(&blkkin_ust_state[event], &off, __ATOMIC_RELEASE);
	__atomic_store_n(&blkkin_ust_probe, NULL, __ATOMIC_RELEASE);
}

/* A forked child would write to its parent's buffers under its parent's name. */
static void in_child(void)
{
	blkkin_ids_forked();
	pthread_mutex_init(&lock, NULL);
	enabled_ns = 0;
	if (follows_forks)
		return;
	uninstall();
	init_result = fail(ECHILD, "forked from a process that was connected to LTTng: connect after forking, or follow forks",
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

/* Maximum descriptor numbers to try. Each copy of this library in the process uses two. */
#define DESCRIPTORS_MAX 64

static bool is_loaded(int file, char *path, size_t room)
{
	void *handle;

	snprintf(path, room, "/proc/self/fd/%d", file);
	handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	return handle && !dlclose(handle);
}

/* Loads an object, which is never unloaded. */
static int load(const char *name, const unsigned char *bytes, size_t size, void **handle, char *reason, size_t room)
{
	int descriptors[DESCRIPTORS_MAX], descriptors_count = 0, file, error;
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
	/*
	 * The loader identifies objects by path. If another object was loaded by the same
	 * descriptor number, that one would be found.
	 */
	while (is_loaded(file, path, sizeof path) && descriptors_count < DESCRIPTORS_MAX) {
		descriptors[descriptors_count++] = file;
		file = fcntl(file, F_DUPFD_CLOEXEC, 0);
	}
	*handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	close(file);
	while (descriptors_count)
		close(descriptors[--descriptors_count]);
	if (!*handle) {
		const char *loader_error = dlerror();

		snprintf(reason, room, "%s", loader_error ? loader_error : "no reason was given");
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
	const char *enabled = getenv("BLKKIN_UST");
	const char *roots = getenv("BLKKIN_UST_ROOTS");
	const struct blkkin_probe *probe = NULL;
	int error;

	if (enabled && !strcmp(enabled, "0"))
		return fail(ECANCELED, "switched off by BLKKIN_UST=0", "");
	called_ns = now_ns();
	error = load_probe(&probe);
	if (error)
		return error;
	if (roots && *roots >= '0' && *roots <= '9')
		probe->set_rate((uint32_t) strtoul(roots, NULL, 10));
	else if (options && options->roots_per_second)
		probe->set_rate(options->roots_per_second == BLKKIN_ALL_ROOTS ? 0 : options->roots_per_second);
	if (options && options->follow_forks) {
		error = probe->follow_forks();
		if (error)
			return fail(error, "cannot follow forks: ", strerror(error));
		follows_forks = true;
	}
	/*
	 * Checked here: in a forked child of a process with threads, the loader's lock may be held
	 * for ever.
	 */
	if (dlopen("liblttng-ust-fork.so.1", RTLD_NOW | RTLD_NOLOAD))
		follows_forks = true;
	pthread_atfork(NULL, NULL, in_child);
	install(probe);
	if (blkkin_enabled())
		enabled_ns = now_ns();
	return 0;
}

int blkkin_init(const struct blkkin_options *options)
{
	int result;

	pthread_mutex_lock(&lock);
	if (publishing == 1) {
		publishing_error[0] = 0;
		publishing = blkkin_start_publishing(!options || !options->no_thread_context, load, publishing_error,
						     sizeof publishing_error);
	}
	if (init_result == 1)
		init_result = start(options);
	result = init_result;
	pthread_mutex_unlock(&lock);
	return result;
}

const char *blkkin_init_error(void)
{
	return init_error;
}

int blkkin_publishing(void)
{
	return publishing == 1 ? -EAGAIN : publishing;
}

const char *blkkin_publishing_error(void)
{
	return publishing_error;
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
