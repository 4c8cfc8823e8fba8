/*
 * sample kinds|tick|die COUNT [MICROSECONDS BETWEEN]: emits COUNT events for each line on stdin.
 * With `die` the first event kills the program between the reservation of space and its commit,
 * because the bytes to copy are at an invalid address.
 */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "sample_tp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	unsigned pause = argc > 3 ? atoi(argv[3]) : 0;
	char line[64];
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		for (uint64_t n = 0; n < count; n++) {
			uint8_t bytes[8] = { 'a' + n % 26, 'b', 'c', 0, (uint8_t)n, 6, 7, 8 };
			if (strcmp(argv[1], "die") == 0)
				lttng_ust_tracepoint(sample, kinds, n, "dies", (const uint8_t *)16, 8);
			else if (strcmp(argv[1], "kinds") == 0)
				lttng_ust_tracepoint(sample, kinds, n, n % 3 ? "some \"text\" \\ \t" : "other", bytes, 1 + n % 8);
			else
				lttng_ust_tracepoint(sample, tick, n, "a request's name");
			if (pause)
				usleep(pause);
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
