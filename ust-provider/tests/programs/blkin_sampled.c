/*
 * blkin's functions while BLKKIN_UST_ROOTS drops traces: a dropped trace and its child emit
 * nothing, and a kept one has the sampling ratio. Prints the numbers of begun and kept traces.
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
