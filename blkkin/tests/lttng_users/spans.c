/*
 * spans SERVICE SPAN DISK BEGUN DONE: begins and enters a span, creates the file BEGUN, reads the
 * disk ten times, waits until the file DONE exists, and ends the span.
 *
 * If FORGED is set, its events name the process and the thread with this id: liblttng-ust calls the
 * functions of this program.
 */
#define _GNU_SOURCE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "spans_tp.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static pid_t named(long call)
{
	const char *forged = getenv("FORGED");
	return forged ? atoi(forged) : (pid_t)syscall(call);
}

pid_t getpid(void)
{
	return named(SYS_getpid);
}

pid_t gettid(void)
{
	return named(SYS_gettid);
}

int main(int argc, char **argv)
{
	uint64_t span = strtoull(argv[2], NULL, 10);
	int disk = open(argv[3], O_RDONLY);
	char bytes[512];

	(void)argc;
	lttng_ust_tracepoint(blkkin, begin, span, argv[1]);
	close(open(argv[4], O_CREAT | O_WRONLY, 0666));
	for (int n = 0; n < 10; n++)
		if (pread(disk, bytes, sizeof bytes, n * sizeof bytes) < 0)
			return 1;
	while (access(argv[5], F_OK) != 0)
		usleep(1000);
	lttng_ust_tracepoint(blkkin, end, span);
	return 0;
}
