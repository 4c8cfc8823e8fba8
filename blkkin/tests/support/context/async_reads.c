/*
 * Asynchronous reads during which the context changes between submission and completion.
 *
 * async_reads DEVICE GO aio|uring TURNS BYTES
 *
 * Warm-up: calls for the span WARM_UP until the file GO exists. Then in each turn, beginning with 1, READS
 * consecutive reads of BYTES of DEVICE are submitted for span 2 * turn, and waited for in span 2 * turn + 1.
 * Exits with 77 if the kernel has no such calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "thread_context.h"

#define WARM_UP (1L << 40 | 1)
#define READS 4

static int device;
static long bytes;
static char *buffer;

/* Empties the slot while the record is written, so that no reader sees a partial record. */
static void enter(struct record *record, long span)
{
	*(struct record *volatile *)slot() = NULL;
	atomic_signal_fence(memory_order_seq_cst);
	fill(record, span);
	atomic_signal_fence(memory_order_seq_cst);
	*(struct record *volatile *)slot() = record;
}

/* Linux native asynchronous I/O. */

static aio_context_t context;

static int aio_begin(void)
{
	return syscall(SYS_io_setup, READS, &context);
}

static int aio_submit(long at)
{
	struct iocb reads[READS], *list[READS];

	memset(reads, 0, sizeof reads);
	for (int i = 0; i < READS; i++) {
		reads[i].aio_fildes = device;
		reads[i].aio_lio_opcode = IOCB_CMD_PREAD;
		reads[i].aio_buf = (uintptr_t)(buffer + i * bytes);
		reads[i].aio_nbytes = bytes;
		reads[i].aio_offset = at + i * bytes;
		list[i] = &reads[i];
	}
	return syscall(SYS_io_submit, context, READS, list) != READS;
}

static int aio_await(void)
{
	struct io_event events[READS];

	if (syscall(SYS_io_getevents, context, READS, READS, events, NULL) != READS)
		return 1;
	for (int i = 0; i < READS; i++)
		if (events[i].res != bytes)
			return 1;
	return 0;
}

/* io_uring: both rings and the entries are in memory that is shared with the kernel. */

static int ring;
static struct io_uring_params parameters;
static char *queues;
static struct io_uring_sqe *entries;

static _Atomic unsigned *at(unsigned offset)
{
	return (_Atomic unsigned *)(queues + offset);
}

static int uring_begin(void)
{
	size_t submission_size, completion_size, size;

	ring = syscall(SYS_io_uring_setup, READS, &parameters);
	if (ring < 0)
		return -1;
	submission_size = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
	completion_size = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
	size = submission_size > completion_size ? submission_size : completion_size;
	queues = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	size = parameters.sq_entries * sizeof *entries;
	entries = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	return queues == MAP_FAILED || entries == MAP_FAILED || !(parameters.features & IORING_FEAT_SINGLE_MMAP) ? -1 : 0;
}

static int uring_submit(long from)
{
	unsigned mask = *at(parameters.sq_off.ring_mask), tail = *at(parameters.sq_off.tail);

	for (int i = 0; i < READS; i++, tail++) {
		struct io_uring_sqe *entry = &entries[tail & mask];

		memset(entry, 0, sizeof *entry);
		entry->opcode = IORING_OP_READ;
		entry->fd = device;
		entry->addr = (uintptr_t)(buffer + i * bytes);
		entry->len = bytes;
		entry->off = from + i * bytes;
		at(parameters.sq_off.array)[tail & mask] = tail & mask;
	}
	atomic_store(at(parameters.sq_off.tail), tail);
	return syscall(SYS_io_uring_enter, ring, READS, 0, 0, NULL, 0) != READS;
}

static int uring_await(void)
{
	struct io_uring_cqe *done = (struct io_uring_cqe *)(queues + parameters.cq_off.cqes);
	unsigned mask = *at(parameters.cq_off.ring_mask), head = *at(parameters.cq_off.head);

	if (syscall(SYS_io_uring_enter, ring, 0, READS, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		return 1;
	if (atomic_load(at(parameters.cq_off.tail)) - head != READS)
		return 1;
	for (int i = 0; i < READS; i++, head++)
		if (done[head & mask].res != bytes)
			return 1;
	atomic_store(at(parameters.cq_off.head), head);
	return 0;
}

int main(int count, char **args)
{
	static struct record record;
	int uring, file;
	char byte;

	if (count < 6 || (device = open(args[1], O_RDONLY | O_DIRECT)) < 0 || (file = open(args[1], O_RDONLY)) < 0)
		return 2;
	uring = !strcmp(args[3], "uring");
	bytes = atol(args[5]);
	if (posix_memalign((void **)&buffer, 4096, READS * bytes))
		return 3;
	if (uring ? uring_begin() : aio_begin())
		return errno == ENOSYS || errno == EPERM ? 77 : 4;
	enter(&record, WARM_UP);
	do {
		if (pread(file, &byte, 1, WARM_UP) < 0)
			return 5;
		usleep(500);
	} while (access(args[2], F_OK));
	for (long turn = 1; turn <= atol(args[4]); turn++) {
		long from = (turn - 1) * READS * bytes;

		enter(&record, 2 * turn);
		if (uring ? uring_submit(from) : aio_submit(from))
			return 6;
		enter(&record, 2 * turn + 1);
		if (uring ? uring_await() : aio_await())
			return 7;
	}
	return 0;
}
