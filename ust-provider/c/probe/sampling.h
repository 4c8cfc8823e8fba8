/*
 * Sampling at the source: which roots of this process are kept, so that about so many a second are.
 *
 * In: each root, with the time and 64 random bits. Out: the part that is kept at this moment, in millionths, or 0 where this
 * root is not. The part depends only on what came before, and each kept root is told it, so 1,000,000 / part summed over
 * what was kept is an unbiased count of all that began.
 *
 * Each second the part is set anew from the roots of the last one. Until then the whole of a sudden load would be kept, so
 * within a second the part is halved each time another `rate` roots were kept: a load of L roots in a second keeps at most
 * rate * (2 + log2(L / rate)) of them. A token bucket would hold the rate exactly, but then nobody knows what part was kept.
 *
 * Threads share it without a lock: a root that is counted into the next second instead does no harm.
 */
#ifndef BLKKIN_SAMPLING_H
#define BLKKIN_SAMPLING_H

#include <stdint.h>

#define BLKKIN_ALL 1000000u
#define BLKKIN_SECOND_NS 1000000000ull

struct blkkin_sampling {
	/* Roots a second that are aimed at; 0: all are kept. */
	uint32_t rate;
	/* The part that is kept now. */
	uint32_t part;
	/* Since `since_ns`. */
	uint64_t roots, kept;
	uint64_t since_ns;
};

static inline uint32_t blkkin_sampling_part(uint32_t rate, uint64_t roots, uint64_t elapsed_ns)
{
	double wanted = (double) rate * (double) elapsed_ns / (double) BLKKIN_SECOND_NS;
	double part = roots ? wanted * BLKKIN_ALL / (double) roots : BLKKIN_ALL;

	if (part >= BLKKIN_ALL)
		return BLKKIN_ALL;
	return part < 1 ? 1 : (uint32_t) part;
}

static inline void blkkin_sampling_set(struct blkkin_sampling *sampling, uint32_t rate, uint64_t now_ns)
{
	__atomic_store_n(&sampling->since_ns, now_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&sampling->roots, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&sampling->kept, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&sampling->part, BLKKIN_ALL, __ATOMIC_RELAXED);
	__atomic_store_n(&sampling->rate, rate, __ATOMIC_RELAXED);
}

static inline uint32_t blkkin_sampling_keep(struct blkkin_sampling *sampling, uint64_t now_ns, uint64_t random)
{
	uint32_t rate = __atomic_load_n(&sampling->rate, __ATOMIC_RELAXED);
	uint64_t since = __atomic_load_n(&sampling->since_ns, __ATOMIC_RELAXED);
	uint32_t part;
	uint64_t kept;

	if (now_ns >= since + BLKKIN_SECOND_NS &&
	    __atomic_compare_exchange_n(&sampling->since_ns, &since, now_ns, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		uint64_t roots = __atomic_exchange_n(&sampling->roots, 0, __ATOMIC_RELAXED);

		__atomic_store_n(&sampling->kept, 0, __ATOMIC_RELAXED);
		part = blkkin_sampling_part(rate, roots, now_ns - since);
		__atomic_store_n(&sampling->part, part, __ATOMIC_RELAXED);
	}
	__atomic_fetch_add(&sampling->roots, 1, __ATOMIC_RELAXED);
	part = __atomic_load_n(&sampling->part, __ATOMIC_RELAXED);
	if ((random >> 32) * BLKKIN_ALL >> 32 >= part)
		return 0;
	kept = __atomic_add_fetch(&sampling->kept, 1, __ATOMIC_RELAXED);
	if (kept > rate && kept % rate == 0 && part > 1) {
		uint32_t seen = part;

		/* Whoever set it anew meanwhile knows better. */
		__atomic_compare_exchange_n(&sampling->part, &seen, part / 2, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
	return part;
}

#endif
