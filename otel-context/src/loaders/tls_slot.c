/* Test program that prints the addresses of its threads' slots. The slot is defined in the program, in a library linked to it,
 * or in a library loaded at run time.
 *
 *	tls_slot LIBRARY|-
 *
 * It prints an address of its own code; for two threads the thread pointer and the slot; and the thread pointer of a third
 * thread, which never accesses its slot. Then it waits until its standard input is closed. */
#if defined(OWN) || defined(LIBRARY)
/* Other thread-local variables before the slot. */
__attribute__((visibility("default"), used)) __thread char before[24] = "before", aligned[40] __attribute__((aligned(64)));
__attribute__((visibility("default"))) __thread void *otel_thread_ctx_v1;

void **slot(void)
{
	return &otel_thread_ctx_v1;
}
#else
extern void **slot(void);
#endif

#ifndef LIBRARY
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void **(*find)(void);
static pthread_barrier_t all;

static void *other(void *accesses)
{
	if (accesses)
		printf("thread %p %p\n", __builtin_thread_pointer(), (void *)find());
	else
		printf("idle %p\n", __builtin_thread_pointer());
	pthread_barrier_wait(&all);
	pause();
	return NULL;
}

int main(int count, char **words)
{
	pthread_t threads[2];
	char byte;

	if (count < 2)
		return 2;
	printf("program %p\n", (void *)main);
#if defined(OWN) || defined(LINKED)
	find = slot;
#else
	void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);

	find = library ? (void **(*)(void))dlsym(library, "slot") : NULL;
	if (!find) {
		fprintf(stderr, "%s\n", dlerror());
		return 3;
	}
#endif
	pthread_barrier_init(&all, NULL, 3);
	printf("thread %p %p\n", __builtin_thread_pointer(), (void *)find());
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, other, i ? NULL : words))
			return 4;
	pthread_barrier_wait(&all);
	puts("done");
	fflush(stdout);
	return read(0, &byte, 1) != 0;
}
#endif
