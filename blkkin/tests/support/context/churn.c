/* A library with a slot that comes and goes, and one without that comes in its place: at the same address, with the same module's number, and
 * what its threads keep there looks like a record.
 *
 * churn FILE LIBRARY OTHER GO TURNS CALLS CHILDREN: in each of TURNS the library is loaded, there are calls for one span, AWAITED, for up to
 * 3 ms, and it is unloaded, in one of four by a child that shares its memory; the other is loaded, with calls for none. Then the library stays:
 * there are calls of two bytes for STAYS until the file GO is there, and CALLS, each for a span of its own. A child that was forked before loads
 * the other and calls for none. Then CHILDREN are forked, one after another, each of which calls for STAYS, unloads the library, and calls for none
 * with the other: itself, or a child of it, beside it or when it has ended, or one that it forks when it has unloaded the library. Who has lost
 * his parent becomes the program's. */
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

#include "thread.h"

#define AWAITED (1L << 40 | 1)
#define DECOY (1L << 40 | 3)
#define STAYS (1L << 40 | 5)

static int file;

static void call(long span, int bytes)
{
	char into[2];

	if (pread(file, into, bytes, span) < 0)
		abort();
}

/* Its slot says that this is worked for. */
static void *load(const char *library, struct record *record)
{
	void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!loaded)
		abort();
	*(struct record *volatile *)((struct record **(*)(void))dlsym(loaded, "slot"))() = record;
	return loaded;
}

static void none_with(const char *other, struct record *decoy)
{
	load(other, decoy);
	for (int i = rand() % 6; i >= 0; i--) {
		call(0, 1);
		usleep(500);
	}
	_exit(0);
}

/* Who unloads the library: a child itself, and besides or instead one that it forks before or when it has unloaded it. */
enum way { ITSELF, BESIDE_ANOTHER, WITHOUT_PARENT, LEFT_BY_PARENT, LEFT_WITH_PARENT, WAYS };

/* It has its parent's library, or was there before it. */
static void child(void *library, const char *other, struct record *decoy)
{
	enum way way = library ? rand() % WAYS : ITSELF;

	if (library) {
		call(STAYS, 2);
		if (way == BESIDE_ANOTHER && fork())
			usleep(rand() % 2000);
		if (way == WITHOUT_PARENT && fork())
			_exit(0);
		dlclose(library);
		if (way == LEFT_BY_PARENT && fork())
			_exit(0);
		if (way == LEFT_WITH_PARENT)
			fork();
	}
	none_with(other, decoy);
}

static int unload(void *library)
{
	return dlclose(library);
}

int main(int count, char **words)
{
	static struct record record, decoy;
	void *stays;
	pid_t early;
	int said;

	if (count < 8 || (file = open(words[1], O_RDONLY)) < 0)
		return 2;
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		abort();
	fill(&decoy, DECOY);
	srand(1);
	for (long turn = 0; turn < atol(words[5]); turn++) {
		void *loaded;

		fill(&record, AWAITED);
		loaded = load(words[2], &record);
		for (int i = rand() % 6; i > 0; i--) {
			call(AWAITED, 1);
			usleep(500);
		}
		if (rand() % 4) {
			unload(loaded);
		} else {
			static _Alignas(64) char stack[1 << 16];

			if (clone(unload, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, loaded) < 0 || wait(&said) < 0 || said)
				abort();
		}
		loaded = load(words[3], &decoy);
		for (int i = rand() % 6; i > 0; i--) {
			call(0, 1);
			usleep(500);
		}
		dlclose(loaded);
	}
	fill(&record, STAYS);
	if (!(early = fork())) {
		while (access(words[4], F_OK))
			usleep(500);
		child(NULL, words[3], &decoy);
	}
	stays = load(words[2], &record);
	do {
		call(STAYS, 2);
		usleep(500);
	} while (access(words[4], F_OK));
	for (long span = 1; span <= atol(words[6]); span++) {
		atomic_signal_fence(memory_order_seq_cst);
		fill(&record, span);
		atomic_signal_fence(memory_order_seq_cst);
		call(span, 1);
	}
	if (waitpid(early, &said, 0) < 0 || said)
		abort();
	fill(&record, STAYS);
	for (long left = atol(words[7]); left > 0; left--) {
		rand();
		if (!fork())
			child(stays, words[3], &decoy);
		while (wait(&said) > 0)
			if (said)
				abort();
	}
	return 0;
}
