/*
 * blkin's calls where BLKKIN_UST_ROOTS thins traces out: a trace that is dropped says nothing, nor does its child, and one that is kept
 * says of how many. Prints how many began, and how many were kept.
 */
#include <zipkin_c.h>

#include <stdio.h>

int main(void)
{
	struct blkin_endpoint here;
	int kept = 0, count = 20000;

	blkin_init();
	blkin_init_endpoint(&here, "127.0.0.1", 1, "thinned");
	for (int each = 0; each < count; each++) {
		struct blkin_trace trace, child;

		blkin_init_new_trace(&trace, "root", &here);
		blkin_init_child(&child, &trace, NULL, "child");
		if (!trace.info.trace_id != !child.info.trace_id)
			return 1;
		kept += trace.info.trace_id != 0;
		BLKIN_TIMESTAMP(&trace, &here, "root");
		BLKIN_TIMESTAMP(&child, &here, "child");
	}
	printf("%d %d\n", count, kept);
	return 0;
}
