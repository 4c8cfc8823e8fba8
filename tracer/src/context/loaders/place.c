/* A program that says where its threads have their slot: in itself, in a library that it is linked to, or in one that it loads.
 *
 *	place LIBRARY|-
 *
 * It says where it is itself; of each of two threads its thread pointer and its slot; and the thread pointer of a third, which
 * never asks for its own. Then it waits until nobody is there who might ask. */
#if defined(OWN) || defined(LIBRARY)
/* So that the slot is not all that there is. */
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

static void *other(void *asks)
{
	if (asks)
		printf("thread %p %p\n", __builtin_thread_pointer(), (void *)find());
	else
		printf("silent %p\n", __builtin_thread_pointer());
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
