/*
 * Counter of the events that this process passed to LTTng. LTTng's own counters begin when the
 * process is registered, and do not distinguish processes. For one session, passed = recorded +
 * discarded.
 *
 * Each thread has its own counter, without a lock. The count of a thread outlives it.
 */
#ifndef BLKKIN_COUNTS_H
#define BLKKIN_COUNTS_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

struct counter {
	/* Written only by its thread. */
	uint64_t seen;
	/* Whether it is in the list. */
	int listed;
	struct counter *next, **link;
};

static __thread struct counter counter;

static pthread_mutex_t counters_lock = PTHREAD_MUTEX_INITIALIZER;
static struct counter *counters;
/* Sum over the threads that have ended. */
static uint64_t counted;
static uint64_t first_enabled;
static pthread_key_t counters_key;
static pthread_once_t counters_once = PTHREAD_ONCE_INIT;

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static void counter_ended(void *ended)
{
	struct counter *mine = ended;

	pthread_mutex_lock(&counters_lock);
	counted += mine->seen;
	*mine->link = mine->next;
	if (mine->next)
		mine->next->link = mine->link;
	/* A later destructor of this thread may count again. */
	mine->seen = 0;
	mine->listed = 0;
	pthread_mutex_unlock(&counters_lock);
}

/* A child has one thread. The counts of its parent's threads belong to the parent. */
static void counters_forked(void)
{
	pthread_mutex_init(&counters_lock, NULL);
	counted = 0;
	first_enabled = 0;
	counters = NULL;
	counter.seen = 0;
	counter.listed = 0;
}

static void counters_begin(void)
{
	pthread_key_create(&counters_key, counter_ended);
	pthread_atfork(NULL, NULL, counters_forked);
}

static __attribute__((noinline, cold)) void counter_list(struct counter *mine)
{
	pthread_once(&counters_once, counters_begin);
	pthread_mutex_lock(&counters_lock);
	if (!first_enabled)
		first_enabled = clock_ns(CLOCK_MONOTONIC);
	mine->listed = 1;
	mine->next = counters;
	mine->link = &counters;
	if (counters)
		counters->link = &mine->next;
	counters = mine;
	pthread_mutex_unlock(&counters_lock);
	pthread_setspecific(counters_key, mine);
}

static inline void count_seen(void)
{
	struct counter *mine = &counter;

	if (__builtin_expect(!mine->listed, 0))
		counter_list(mine);
	__atomic_store_n(&mine->seen, mine->seen + 1, __ATOMIC_RELAXED);
}

static uint64_t seen_enabled(void)
{
	uint64_t sum;
	struct counter *each;

	pthread_mutex_lock(&counters_lock);
	sum = counted;
	for (each = counters; each; each = each->next)
		sum += __atomic_load_n(&each->seen, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&counters_lock);
	return sum;
}

static uint64_t first_enabled_ns(void)
{
	uint64_t first;

	pthread_mutex_lock(&counters_lock);
	first = first_enabled;
	pthread_mutex_unlock(&counters_lock);
	return first;
}

#endif
