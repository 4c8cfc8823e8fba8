/*
 * reads DISK BEGIN: once the file BEGIN exists, reads the disk a hundred times. It is not
 * instrumented.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int disk = open(argv[1], O_RDONLY);
	char bytes[4096];

	(void)argc;
	/* The tracer reports the process with its first system call. */
	if (pread(disk, bytes, sizeof bytes, 0) < 0)
		return 1;
	while (access(argv[2], F_OK) != 0)
		usleep(1000);
	for (int n = 0; n < 100; n++)
		if (pread(disk, bytes, sizeof bytes, n * sizeof bytes) < 0)
			return 1;
	return 0;
}
