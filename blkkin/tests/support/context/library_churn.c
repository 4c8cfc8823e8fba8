/*
 * A library with a slot that is loaded and unloaded, and a library without one that is loaded in its place:
 * at the same address, with the same module number, and with thread-local data that looks like a record.
 *
 * library_churn FILE LIBRARY OTHER GO TURNS CALLS CHILDREN
 *
 * In each of TURNS the library is loaded, there are calls for the span WARM_UP for up to 3 ms, and it is
 * unloaded, in one of four turns by a child that shares the memory. Then the other library is loaded, with
 * calls for no span.
 *
 * After that the library stays loaded: calls of two bytes for STAYS until the file GO exists, then CALLS
 * calls, each for a span of its own. A child that was forked before loads the other library and makes calls
 * for no span.
 *
 * Then CHILDREN children are forked, one after another. Each makes a call for STAYS, unloads the library,
 * and makes calls for no span with the other library. The calls are made by the child itself, or by a child
 * of it: while the child runs, after it has ended, or forked after the unloading. The program is the
 * subreaper of orphans.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thread_context.h"

#define WARM_UP (1L << 40 | 1)
#define DECOY (1L << 40 | 3)
#define STAYS (1L << 40 | 5)

static int file;

static void call(long span, int bytes)
{
	char buffer[2];

	if (pread(file, buffer, bytes, span) < 0)
		abort();
}

/* Loads a library and stores the record in its slot. */
static void *load(const char *library, struct record *record)
{
	void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!loaded)
		abort();
	*(struct record *volatile *)((struct record **(*)(void))dlsym(loaded, "slot"))() = record;
	return loaded;
}

static void calls_without_span(const char *other, struct record *decoy)
{
	load(other, decoy);
	for (int i = rand() % 6; i >= 0; i--) {
		call(0, 1);
		usleep(500);
	}
	_exit(0);
}

/* Process that makes the calls after the unloading: the child, or a grandchild that was forked before or after it. */
enum caller { CHILD, CHILD_AND_GRANDCHILD, ORPHAN, ORPHAN_AFTER_UNLOAD, GRANDCHILD_AFTER_UNLOAD, CALLERS };

/* Runs in a child, which inherited the library or was forked before it was loaded (library is NULL). */
static void child(void *library, const char *other, struct record *decoy)
{
	enum caller caller = library ? rand() % CALLERS : CHILD;

	if (library) {
		call(STAYS, 2);
		if (caller == CHILD_AND_GRANDCHILD && fork())
			usleep(rand() % 2000);
		if (caller == ORPHAN && fork())
			_exit(0);
		dlclose(library);
		if (caller == ORPHAN_AFTER_UNLOAD && fork())
			_exit(0);
		if (caller == GRANDCHILD_AFTER_UNLOAD)
			fork();
	}
	calls_without_span(other, decoy);
}

static int unload(void *library)
{
	return dlclose(library);
}

int main(int count, char **args)
{
	static struct record record, decoy;
	void *stable;
	pid_t early;
	int status;

	if (count < 8 || (file = open(args[1], O_RDONLY)) < 0)
		return 2;
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		abort();
	fill(&decoy, DECOY);
	srand(1);
	for (long turn = 0; turn < atol(args[5]); turn++) {
		void *loaded;

		fill(&record, WARM_UP);
		loaded = load(args[2], &record);
		for (int i = rand() % 6; i > 0; i--) {
			call(WARM_UP, 1);
			usleep(500);
		}
		if (rand() % 4) {
			unload(loaded);
		} else {
			static _Alignas(64) char stack[1 << 16];

			if (clone(unload, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, loaded) < 0 || wait(&status) < 0 || status)
				abort();
		}
		loaded = load(args[3], &decoy);
		for (int i = rand() % 6; i > 0; i--) {
			call(0, 1);
			usleep(500);
		}
		dlclose(loaded);
	}
	fill(&record, STAYS);
	if (!(early = fork())) {
		while (access(args[4], F_OK))
			usleep(500);
		child(NULL, args[3], &decoy);
	}
	stable = load(args[2], &record);
	do {
		call(STAYS, 2);
		usleep(500);
	} while (access(args[4], F_OK));
	for (long span = 1; span <= atol(args[6]); span++) {
		atomic_signal_fence(memory_order_seq_cst);
		fill(&record, span);
		atomic_signal_fence(memory_order_seq_cst);
		call(span, 1);
	}
	if (waitpid(early, &status, 0) < 0 || status)
		abort();
	fill(&record, STAYS);
	for (long left = atol(args[7]); left > 0; left--) {
		rand();
		if (!fork())
			child(stable, args[3], &decoy);
		while (wait(&status) > 0)
			if (status)
				abort();
	}
	return 0;
}
