/*
 * Sampling with a simulated clock: a steady load, a sudden one, one that ends. The threads take the
 * roots in turns. Prints for each second the numbers of roots and kept roots, and the sums of the
 * weights of all kept ones and of those with an even number.
 */
#include "../../c/probe/sampling.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t random_state = 88172645463325252u;

/* xorshift64*: the same numbers in each run. */
static uint64_t next_random(void)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return random_state * 0x2545f4914f6cdd1du;
}

int main(int count, char **args)
{
	struct blkkin_sampling sampling = { .rate = (uint32_t) atoi(args[1]), .interval = 1 };
	static struct blkkin_sampling_group groups[64];
	static uint32_t drop_next[64];
	uint64_t now = 5 * BLKKIN_SECOND_NS;
	int threads = atoi(args[2]);

	for (int second = 3; second < count; second++) {
		long roots = atol(args[second]), kept = 0;
		double weight = 0, even = 0;

		for (long root = 0; root < roots; root++) {
			uint64_t at = now + (uint64_t) root * BLKKIN_SECOND_NS / (uint64_t) roots;
			long thread = root % threads;
			uint32_t ratio = 0;

			if (drop_next[thread])
				drop_next[thread]--;
			else
				ratio = blkkin_sampling_keep(&sampling, &groups[thread], at, next_random(),
							     &drop_next[thread]);

			if (ratio) {
				if (BLKKIN_ALL % ratio)
					return 1;
				kept++;
				weight += (double) (BLKKIN_ALL / ratio);
				even += root % 2 ? 0 : (double) (BLKKIN_ALL / ratio);
			}
		}
		now += BLKKIN_SECOND_NS;
		printf("%ld %ld %.0f %.0f\n", roots, kept, weight, even);
	}
	return 0;
}
