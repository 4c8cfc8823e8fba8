/* A library with a slot that comes and goes, and one without that comes in its place: at the same address, with the same module's number, and
 * what its threads keep there looks like a record.
 *
 * churn FILE LIBRARY OTHER GO TURNS CALLS CHILDREN: in each of TURNS the library is loaded, there are calls for one span, AWAITED, for up to
 * 3 ms, and it is unloaded; the other is, with calls for none. Then the library stays: there are calls of two bytes for STAYS until the
 * file GO is there, and CALLS, each for a span of its own. A child that was forked before loads the other and calls for none. Then CHILDREN are forked, one after another, each of which calls for STAYS,
 * unloads the library, and calls for none with the other. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
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

/* It has its parent's library, or was there before it. */
static void child(void *library, const char *other, struct record *decoy)
{
	if (library) {
		call(STAYS, 2);
		dlclose(library);
	}
	load(other, decoy);
	for (int i = rand() % 6; i >= 0; i--) {
		call(0, 1);
		usleep(500);
	}
	_exit(0);
}

int main(int count, char **words)
{
	static struct record record, decoy;
	void *stays;
	pid_t early;
	int said;

	if (count < 8 || (file = open(words[1], O_RDONLY)) < 0)
		return 2;
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
		dlclose(loaded);
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
		if (wait(&said) < 0 || said)
			abort();
	}
	return 0;
}
