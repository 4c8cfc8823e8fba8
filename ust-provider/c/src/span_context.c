/*
 * Wire formats of a span context: W3C traceparent (Trace Context, section 3.2) and blkin's packed
 * trace info, three big-endian words of 64 bits. `src/span_context.rs` has the same, and the limits
 * of the second format.
 */
#include <blkkin/ust.h>

#include <stdio.h>
#include <string.h>

static bool is_none(const struct blkkin_context *context)
{
	return !context->span || (!context->trace_hi && !context->trace_lo);
}

static bool hex(const char *digits, int count, uint64_t *value)
{
	*value = 0;
	for (; count; count--, digits++) {
		char digit = *digits;

		if (digit >= '0' && digit <= '9')
			*value = *value << 4 | (uint64_t) (digit - '0');
		else if (digit >= 'a' && digit <= 'f')
			*value = *value << 4 | (uint64_t) (digit - 'a' + 10);
		else
			return false;
	}
	return true;
}

int blkkin_to_traceparent(const struct blkkin_context *context, char text[56])
{
	text[0] = 0;
	if (is_none(context))
		return -1;
	snprintf(text, 56, "00-%016llx%016llx-%016llx-%02x", (unsigned long long) context->trace_hi,
		 (unsigned long long) context->trace_lo, (unsigned long long) context->span, context->sampled ? 1u : 0u);
	return 0;
}

int blkkin_from_traceparent(struct blkkin_context *context, const char *text)
{
	size_t length = strnlen(text, 56);
	uint64_t version, flags;

	memset(context, 0, sizeof *context);
	if (length < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-')
		return -1;
	if (!hex(text, 2, &version) || version == 0xff)
		return -1;
	/* A later version may have more fields after a dash. */
	if (length > 55 && (version == 0 || text[55] != '-'))
		return -1;
	if (!hex(text + 3, 16, &context->trace_hi) || !hex(text + 19, 16, &context->trace_lo) ||
	    !hex(text + 36, 16, &context->span) || !hex(text + 53, 2, &flags) || is_none(context)) {
		memset(context, 0, sizeof *context);
		return -1;
	}
	context->sampled = flags & 1;
	return 0;
}

static void put(unsigned char *bytes, uint64_t word)
{
	for (int index = 7; index >= 0; index--, word >>= 8)
		bytes[index] = (unsigned char) word;
}

static uint64_t get(const unsigned char *bytes)
{
	uint64_t word = 0;

	for (int index = 0; index < 8; index++)
		word = word << 8 | bytes[index];
	return word;
}

int blkkin_to_blkin(const struct blkkin_context *context, unsigned char bytes[24])
{
	memset(bytes, 0, 24);
	if (is_none(context) || !context->sampled || context->trace_hi)
		return -1;
	put(bytes, context->trace_lo);
	put(bytes + 8, context->span);
	put(bytes + 16, context->parent);
	return 0;
}

int blkkin_from_blkin(struct blkkin_context *context, const unsigned char bytes[24])
{
	memset(context, 0, sizeof *context);
	context->trace_lo = get(bytes);
	context->span = get(bytes + 8);
	context->parent = get(bytes + 16);
	if (is_none(context)) {
		memset(context, 0, sizeof *context);
		return -1;
	}
	context->sampled = true;
	return 0;
}
