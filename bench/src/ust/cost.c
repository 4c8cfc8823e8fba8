/*
 * Cost of the functions of the headers while no session records: a line for each, with a tab before its ns
 * per call.
 */
#include <blkkin/ust.h>
#include <zipkin_c.h>

#include <stdio.h>
#include <time.h>

#define CALLS 2000000

/* CPU time, so that other processes do not count. */
static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double) now.tv_sec * 1e9 + (double) now.tv_nsec;
}

/* Keeps the compiler from optimizing the object away. */
#define USED(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

#define COST(label, call)										\
	do {												\
		double each_ns, begun = now_ns();							\
													\
		for (int each = 0; each < CALLS; each++) {						\
			USED(&span);									\
			call;										\
		}											\
		each_ns = (now_ns() - begun) / CALLS;							\
		if (!empty)										\
			empty = each_ns;								\
		else											\
			printf("%s\t%.3f\n", label, each_ns > empty ? each_ns - empty : 0);		\
	} while (0)

int main(void)
{
	struct blkkin_context remote = { 0, 1, 2, 0, true };
	struct blkkin_span span = { 0 }, child, continued;
	struct blkin_endpoint here;
	struct blkin_trace trace;
	double empty = 0;

	blkkin_init(NULL);
	blkin_init_endpoint(&here, "127.0.0.1", 1, "s");
	blkin_init_new_trace(&trace, "t", &here);
	COST("", );
	COST("blkkin_number", blkkin_number(&span, "k", each));
	COST("enter, leave", blkkin_enter(&span); blkkin_leave(&span));
	COST("blkkin_begin_root, blkkin_end", blkkin_begin_root(&child, BLKKIN_SERVER, "r", "s", BLKKIN_SCOPED);
	     USED(&child); blkkin_end(&child));
	COST("BLKIN_TIMESTAMP", BLKIN_TIMESTAMP(&trace, &here, CLIENT_SEND));
	COST("BLKIN_KEYVAL_STRING", BLKIN_KEYVAL_STRING(&trace, &here, "k", "v"));
	COST("BLKIN_KEYVAL_INTEGER", BLKIN_KEYVAL_INTEGER(&trace, &here, "k", each));
	blkkin_begin_continued(&continued, &remote, BLKKIN_SERVER, "r", "s", BLKKIN_DETACHED);
	COST("published: enter, leave", blkkin_enter(&continued); blkkin_leave(&continued));
	return 0;
}
