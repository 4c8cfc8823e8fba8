/* Connects, prints the result, then calls functions, which must work in every case. */
#include <blkkin/ust.h>
#include <zipkin_c.h>

#include <stdio.h>

int main(void)
{
	struct blkin_endpoint here;
	struct blkin_trace trace;
	struct blkkin_span span;
	int result = blkkin_init(NULL);

	if (blkkin_init(NULL) != result || blkin_init())
		return 1;
	blkkin_begin_root(&span, BLKKIN_SERVER, "x", "y", BLKKIN_SCOPED);
	blkkin_text(&span, "k", "v");
	blkkin_end(&span);
	blkin_init_endpoint(&here, "", 0, "s");
	if (blkin_init_new_trace(&trace, "t", &here) || !trace.info.trace_id)
		return 1;
	BLKIN_TIMESTAMP(&trace, &here, CLIENT_SEND);
	if (blkkin_seen_enabled() || blkkin_time_to_enabled_ns() || blkkin_enabled())
		return 1;
	printf("%d %s\n", result, blkkin_init_error());
	return 0;
}
