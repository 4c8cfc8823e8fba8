/*
 * Sampling with a simulated clock: a steady load, a sudden one, one that ends. Prints for each
 * second the numbers of roots and kept roots, and the sum of the weights of the kept ones.
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
	struct blkkin_sampling sampling = { 0 };
	uint64_t now = 5 * BLKKIN_SECOND_NS;

	blkkin_sampling_set(&sampling, (uint32_t) atoi(args[1]), now);
	for (int second = 2; second < count; second++) {
		long roots = atol(args[second]), kept = 0;
		double weight = 0;

		for (long root = 0; root < roots; root++) {
			uint64_t at = now + (uint64_t) root * BLKKIN_SECOND_NS / (uint64_t) roots;
			uint32_t ratio = blkkin_sampling_keep(&sampling, at, next_random());

			if (ratio) {
				kept++;
				weight += (double) BLKKIN_ALL / ratio;
			}
		}
		now += BLKKIN_SECOND_NS;
		printf("%ld %ld %.0f\n", roots, kept, weight);
	}
	return 0;
}
