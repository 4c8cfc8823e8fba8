#define _GNU_SOURCE
#include "ids.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* Number of forks, counted from 1. Each thread remembers the value for which it took its state. */
static uint64_t generation = 1;
static __thread uint64_t state, drawn;

/* Last step of splitmix64: a bijection. */
static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static __attribute__((noinline, cold)) uint64_t seed(void)
{
	uint64_t own;
	struct timespec now;

	/* Fails only if the kernel has no randomness yet, or a seccomp filter forbids the call. */
	if (getrandom(&own, sizeof own, GRND_NONBLOCK) == sizeof own)
		return own;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return mix((uint64_t) now.tv_sec << 30 ^ (uint64_t) now.tv_nsec) ^ mix((uint64_t) getpid() << 32) ^
	       mix((uintptr_t) &state);
}

uint64_t blkkin_fresh_id(void)
{
	uint64_t current = __atomic_load_n(&generation, __ATOMIC_RELAXED), id;

	if (__builtin_expect(drawn != current, 0)) {
		state = seed();
		drawn = current;
	}
	state += 0x9e3779b97f4a7c15u;
	id = mix(state);
	return id ? id : 1;
}

void blkkin_ids_forked(void)
{
	__atomic_fetch_add(&generation, 1, __ATOMIC_RELAXED);
}
