/*
 * Sampling of roots at the source, at a target rate per second and process.
 *
 * In: a thread's root, with the time and 64 random bits. Out: the ratio of kept roots in millionths,
 * or 0 if this root is dropped; and how many of the thread's next roots are dropped too.
 *
 * A thread takes its roots in groups of `interval`, and keeps one root of each group, at a random
 * position. So a root is kept with the probability 1 / interval, which divides a million: the ratio
 * is exact. 1,000,000 / ratio, summed over the kept roots, is an unbiased count of all roots, and
 * only groups that are not full when their second ends add to its error: less than an interval for
 * each thread and second.
 *
 * Each second the interval is computed from the roots of the previous second, as the next divisor
 * of a million. So a steady load above the rate keeps between half of the rate and the rate. That
 * alone would keep all of a sudden load for a second. So within a second the interval is doubled
 * each time another `rate` roots were kept: a load of L roots in a second keeps up to
 * rate * (2 + log2(L / rate)) of them.
 *
 * Invariant: a group ends when it is full or with its second, never because of the root that it
 * kept. Otherwise the roots after that one would have a second chance. For the same reason the time
 * is compared at each BLKKIN_CHECK_ROOTS roots of a group, and not at the kept one.
 *
 * Most dropped roots only count down the caller's number of roots to drop, in memory of its thread.
 * Threads share the interval without a lock, and a kept root writes the shared counters. The clock
 * is the coarse one, which is no system call. The price: up to BLKKIN_CHECK_ROOTS - 1 roots of a
 * thread that was idle still have the ratio from before.
 *
 * Rejected: a token bucket. It would hold the rate exactly, but the ratio of kept roots would be
 * unknown. Rejected: an independent draw for each root. The weights of n kept roots would count all
 * roots with a standard deviation of 1 / sqrt(n), 3 % for a thousand. Rejected: a rate per thread.
 * It saves nothing, and a process with many threads would emit that many times the rate.
 */
#ifndef BLKKIN_SAMPLING_H
#define BLKKIN_SAMPLING_H

#include <stdint.h>

/* Default rate. docs/decisions/34-roots-are-sampled-and-events-are-plain.md has the measurement. */
#define BLKKIN_ROOTS_PER_SECOND 1000u
#define BLKKIN_ALL 1000000u
#define BLKKIN_SECOND_NS 1000000000ull
/* Number of roots between two comparisons with the clock. */
#define BLKKIN_CHECK_ROOTS 16u

/* State that the threads of a process share. */
struct blkkin_sampling {
	/* Target roots per second; 0 keeps all. */
	uint32_t rate;
	/* Number of roots of which one is kept, for groups that begin now. */
	uint32_t interval;
	/* Number of kept roots since `since_ns`, and of the roots that they stand for. */
	uint64_t kept, roots;
	uint64_t since_ns;
};

/* Group of one thread. All 0: none. */
struct blkkin_sampling_group {
	uint64_t until_ns;
	uint32_t interval;
	/*
	 * Number of its roots that are decided, and the one that is kept, counted from 0.
	 */
	uint32_t taken, position;
};

/* Returns the smallest divisor of a million that is not smaller than `least`. */
static inline uint32_t blkkin_sampling_divisor(double least)
{
	uint32_t best = BLKKIN_ALL, two, five;

	for (five = 1; five <= 15625; five *= 5)
		for (two = 1; two <= 64; two *= 2)
			if (two * five >= least && two * five < best)
				best = two * five;
	return best;
}

static inline void blkkin_sampling_begin_group(struct blkkin_sampling *sampling, struct blkkin_sampling_group *group,
					       uint64_t now_ns, uint64_t random)
{
	uint64_t since = __atomic_load_n(&sampling->since_ns, __ATOMIC_RELAXED);

	if (now_ns >= since + BLKKIN_SECOND_NS &&
	    __atomic_compare_exchange_n(&sampling->since_ns, &since, now_ns, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		double roots = (double) __atomic_exchange_n(&sampling->roots, 0, __ATOMIC_RELAXED);
		double target = (double) sampling->rate * (double) (now_ns - since) / (double) BLKKIN_SECOND_NS;

		__atomic_store_n(&sampling->kept, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&sampling->interval, blkkin_sampling_divisor(roots / target), __ATOMIC_RELAXED);
		since = now_ns;
	}
	group->until_ns = since + BLKKIN_SECOND_NS;
	group->interval = __atomic_load_n(&sampling->interval, __ATOMIC_RELAXED);
	group->taken = 0;
	group->position = (uint32_t) ((random >> 32) * group->interval >> 32);
}

static inline void blkkin_sampling_count_kept(struct blkkin_sampling *sampling, uint32_t interval)
{
	uint64_t kept = __atomic_add_fetch(&sampling->kept, 1, __ATOMIC_RELAXED);

	__atomic_fetch_add(&sampling->roots, interval, __ATOMIC_RELAXED);
	if (kept > sampling->rate && kept % sampling->rate == 0) {
		uint32_t seen = __atomic_load_n(&sampling->interval, __ATOMIC_RELAXED);

		/* Another thread may have computed a newer interval. */
		__atomic_compare_exchange_n(&sampling->interval, &seen, blkkin_sampling_divisor(2.0 * seen), 0,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
}

/* Decides on a root, and on the thread's next `drop_next` roots. Call it only if the rate is not 0. */
static inline uint32_t blkkin_sampling_keep(struct blkkin_sampling *sampling, struct blkkin_sampling_group *group,
					    uint64_t now_ns, uint64_t random, uint32_t *drop_next)
{
	uint32_t root, next, check;

	if (group->taken == group->interval || (group->taken % BLKKIN_CHECK_ROOTS == 0 && now_ns >= group->until_ns))
		blkkin_sampling_begin_group(sampling, group, now_ns, random);
	root = group->taken;
	next = root < group->position ? group->position : group->interval;
	check = (root / BLKKIN_CHECK_ROOTS + 1) * BLKKIN_CHECK_ROOTS;
	group->taken = next < check ? next : check;
	*drop_next = group->taken - root - 1;
	if (root != group->position)
		return 0;
	blkkin_sampling_count_kept(sampling, group->interval);
	return BLKKIN_ALL / group->interval;
}

#endif
