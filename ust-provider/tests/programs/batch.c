/*
 * Emits a batch and a sequence of spans, and prints the events that a reader of the trace must
 * find.
 */
#include <blkkin/ust.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SPANS 40

static void expect_begin(const struct blkkin_span *span, int kind, const char *name)
{
	const struct blkkin_context context = blkkin_context_of(span), *c = &context;

	printf("blkkin:begin { trace_hi = %" PRIu64 ", trace_lo = %" PRIu64 ", span = %" PRIu64 ", parent = %" PRIu64
	       ", kind = %d, on = 0, kept_per_million = 1000000, name = \"%s\", service = \"nbd\" }\n",
	       c->trace_hi, c->trace_lo, c->span, c->parent, kind, name);
}

int main(void)
{
	static struct blkkin_span spans[SPANS];
	struct blkkin_sequence sequence = BLKKIN_SEQUENCE_INIT;
	struct blkkin_context far = { 7, 8, 9, 0, true };
	struct blkkin_batch batch;
	char text[16], words[601] = { 0 };
	uint64_t id;
	int each;

	memset(words, 'x', sizeof words - 1);
	if (blkkin_init(NULL))
		return 1;
	blkkin_batch_init(&batch);
	for (each = 0; each < SPANS; each++) {
		struct blkkin_span *span = &spans[each];

		switch (each % 3) {
		case 0:
			blkkin_batch_root(&batch, span, BLKKIN_SERVER, "READ", "nbd");
			expect_begin(span, 1, "READ");
			break;
		case 1:
			far.trace_hi = each % 2 ? 7 : 0;
			blkkin_batch_continued(&batch, span, &far, BLKKIN_CLIENT, "WRITE", "nbd");
			expect_begin(span, 2, "WRITE");
			break;
		default:
			blkkin_batch_child(&batch, span, span - 1, BLKKIN_INTERNAL, "part");
			expect_begin(span, 0, "part");
		}
		id = span->context.span;
		blkkin_batch_number(&batch, span, "offset", -4096);
		printf("blkkin:number { span = %" PRIu64 ", key = \"offset\", val = -4096 }\n", id);
		/* Always at the same address, with different content. */
		snprintf(text, sizeof text, "disk %d", each);
		blkkin_batch_text(&batch, span, "export", text);
		printf("blkkin:text { span = %" PRIu64 ", key = \"export\", val = \"%s\" }\n", id, text);
		blkkin_batch_rpc_endpoint(&batch, span, BLKKIN_RPC_SERVER, "nbd", "a>b", UINT64_MAX, each % 2);
		printf("blkkin:meeting { span = %" PRIu64 ", side = 1, unique = %d, rule = \"nbd\", connection = \"a>b\", "
		       "cookie = 18446744073709551615 }\n",
		       id, each % 2);
		if (each == 20) {
			blkkin_batch_text(&batch, span, "long", words);
			printf("blkkin:text { span = %" PRIu64 ", key = \"long\", val = \"%s\" }\n", id, words);
		}
		blkkin_batch_event(&batch, spans, "queued");
		printf("blkkin:event { span = %" PRIu64 ", name = \"queued\" }\n", spans->context.span);
	}
	blkkin_batch_flush(&batch);
	for (each = 0; each < 3; each++) {
		blkkin_sequence_enter(&sequence, &spans[each]);
		if (each)
			printf("blkkin:leave { span = %" PRIu64 " }\n", spans[each - 1].context.span);
		printf("blkkin:enter { span = %" PRIu64 " }\n", spans[each].context.span);
	}
	blkkin_sequence_exit(&sequence);
	printf("blkkin:leave { span = %" PRIu64 " }\n", spans[2].context.span);
	for (each = 0; each < SPANS; each++) {
		if (each == 1)
			blkkin_fail(&spans[each], 5);
		printf("blkkin:end { span = %" PRIu64 ", status = %d }\n", spans[each].context.span, each == 1 ? 5 : 0);
		blkkin_batch_end(&batch, &spans[each]);
		/* The span has ended. */
		blkkin_batch_number(&batch, &spans[each], "late", 1);
		blkkin_end(&spans[each]);
	}
	blkkin_batch_flush(&batch);
	return 0;
}
