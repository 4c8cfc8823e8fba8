/*
 * Sampling of roots at the source, at a target rate per second.
 *
 * In: each root, with the time and 64 random bits. Out: the current ratio of kept roots in
 * millionths, or 0 if this root is dropped. The ratio depends only on earlier roots, and each kept
 * root records it. So 1,000,000 / ratio, summed over the kept roots, is an unbiased count of all
 * roots.
 *
 * Each second the ratio is computed from the roots of the previous second. That alone would keep
 * all of a sudden load for a second. So within a second the ratio is halved each time another
 * `rate` roots were kept: a load of L roots in a second keeps up to rate * (2 + log2(L / rate)) of
 * them.
 *
 * Rejected: a token bucket. It would hold the rate exactly, but the ratio of kept roots would be
 * unknown.
 *
 * Threads share the state without a lock. A root that is counted in the next second does no harm.
 */
#ifndef BLKKIN_SAMPLING_H
#define BLKKIN_SAMPLING_H

#include <stdint.h>

#define BLKKIN_ALL 1000000u
#define BLKKIN_SECOND_NS 1000000000ull

struct blkkin_sampling {
	/* Target roots per second; 0 keeps all. */
	uint32_t rate;
	/* Current ratio of kept roots, in millionths. */
	uint32_t ratio;
	/* Counts since `since_ns`. */
	uint64_t roots, kept;
	uint64_t since_ns;
};

static inline uint32_t blkkin_sampling_ratio(uint32_t rate, uint64_t roots, uint64_t elapsed_ns)
{
	double target = (double) rate * (double) elapsed_ns / (double) BLKKIN_SECOND_NS;
	double ratio = roots ? target * BLKKIN_ALL / (double) roots : BLKKIN_ALL;

	if (ratio >= BLKKIN_ALL)
		return BLKKIN_ALL;
	return ratio < 1 ? 1 : (uint32_t) ratio;
}

static inline void blkkin_sampling_set(struct blkkin_sampling *sampling, uint32_t rate, uint64_t now_ns)
{
	__atomic_store_n(&sampling->since_ns, now_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&sampling->roots, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&sampling->kept, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&sampling->ratio, BLKKIN_ALL, __ATOMIC_RELAXED);
	__atomic_store_n(&sampling->rate, rate, __ATOMIC_RELAXED);
}

static inline uint32_t blkkin_sampling_keep(struct blkkin_sampling *sampling, uint64_t now_ns, uint64_t random)
{
	uint32_t rate = __atomic_load_n(&sampling->rate, __ATOMIC_RELAXED);
	uint64_t since = __atomic_load_n(&sampling->since_ns, __ATOMIC_RELAXED);
	uint32_t ratio;
	uint64_t kept;

	if (now_ns >= since + BLKKIN_SECOND_NS &&
	    __atomic_compare_exchange_n(&sampling->since_ns, &since, now_ns, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		uint64_t roots = __atomic_exchange_n(&sampling->roots, 0, __ATOMIC_RELAXED);

		__atomic_store_n(&sampling->kept, 0, __ATOMIC_RELAXED);
		ratio = blkkin_sampling_ratio(rate, roots, now_ns - since);
		__atomic_store_n(&sampling->ratio, ratio, __ATOMIC_RELAXED);
	}
	__atomic_fetch_add(&sampling->roots, 1, __ATOMIC_RELAXED);
	ratio = __atomic_load_n(&sampling->ratio, __ATOMIC_RELAXED);
	if ((random >> 32) * BLKKIN_ALL >> 32 >= ratio)
		return 0;
	kept = __atomic_add_fetch(&sampling->kept, 1, __ATOMIC_RELAXED);
	if (kept > rate && kept % rate == 0 && ratio > 1) {
		uint32_t seen = ratio;

		/* Another thread may have computed a newer ratio. */
		__atomic_compare_exchange_n(&sampling->ratio, &seen, ratio / 2, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
	return ratio;
}

#endif
