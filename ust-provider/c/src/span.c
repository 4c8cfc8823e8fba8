/*
 * Functions behind the inline functions of <blkkin/ust.h>, for spans that are recorded.
 * `src/span.rs` has the same rules with their reasons.
 */
#include <blkkin/ust.h>

#include "ids.h"
#include "internal.h"

static const struct blkkin_probe *current_probe(void)
{
	return __atomic_load_n(&blkkin_ust_probe, __ATOMIC_ACQUIRE);
}

/* Assigns the ids, and returns whether the span is recorded. */
bool blkkin_assign_ids(const struct blkkin_probe *probe, struct blkkin_span *span, uint32_t kept_per_million)
{
	struct blkkin_context parent = blkkin_context_of(span);

	if (!parent.span || (!parent.trace_hi && !parent.trace_lo)) {
		kept_per_million = probe->keep_root(blkkin_fresh_id());
		/* The trace id is the root's span id. */
		span->context.span = blkkin_fresh_id();
		span->context =
			(struct blkkin_context) { 0, span->context.span, span->context.span, 0, kept_per_million != 0 };
	} else if (parent.sampled && kept_per_million) {
		span->context.span = blkkin_fresh_id();
		span->context.parent = parent.span;
	} else {
		return false;
	}
	span->kept_per_million = kept_per_million ? kept_per_million : BLKKIN_PROPAGATES;
	return kept_per_million != 0;
}

void blkkin_emit_begin(const struct blkkin_probe *probe, const struct blkkin_span *span, enum blkkin_kind kind,
		       const char *name, enum blkkin_scope scope)
{
	struct blkkin_begin begin = { 0 };

	begin.trace_hi = span->context.trace_hi;
	begin.trace_lo = span->context.trace_lo;
	begin.span = span->context.span;
	begin.parent = span->context.parent;
	begin.kind = (uint8_t) kind;
	begin.on = (uint8_t) scope;
	/* A session without enter events could not detect that the thread enters another span. */
	if (scope == BLKKIN_SCOPED && blkkin_ust_publishes && !*probe->state[BLKKIN_ENTER])
		begin.on = 2;
	begin.kept_per_million = span->kept_per_million;
	begin.name = name;
	begin.service = span->service;
	probe->begin(&begin);
}

/*
 * Begins a span that is not yet recorded and has the context of its parent. Without a context it
 * becomes a root, which sampling may drop. `kept_per_million` is the sampling ratio of the parent's
 * root, or 0 if the parent is not recorded.
 */
void blkkin_ust_begin(struct blkkin_span *span, uint32_t kept_per_million, enum blkkin_kind kind, const char *name,
		      enum blkkin_scope scope)
{
	const struct blkkin_probe *probe = current_probe();

	if (probe && blkkin_assign_ids(probe, span, kept_per_million))
		blkkin_emit_begin(probe, span, kind, name, scope);
}

void blkkin_ust_end(const struct blkkin_span *span)
{
	const struct blkkin_probe *probe = current_probe();

	/* The thread may not have left the span. */
	blkkin_ust_unpublish(span->context.span);
	if (probe)
		probe->end(span->context.span, span->status);
}

void blkkin_ust_enter(uint64_t span)
{
	blkkin_ust_turn(0, span);
}

void blkkin_ust_leave(uint64_t span)
{
	blkkin_ust_turn(span, 0);
}

void blkkin_ust_event(uint64_t span, const char *name)
{
	const struct blkkin_probe *probe = current_probe();

	if (probe)
		probe->event(span, name);
}

void blkkin_ust_text(uint64_t span, const char *key, const char *val)
{
	const struct blkkin_probe *probe = current_probe();

	if (probe)
		probe->text(span, key, val);
}

void blkkin_ust_number(uint64_t span, const char *key, int64_t val)
{
	const struct blkkin_probe *probe = current_probe();

	if (probe)
		probe->number(span, key, val);
}

void blkkin_ust_rpc_endpoint(uint64_t span, enum blkkin_rpc_side side, bool unique, const char *rule, const char *connection,
			     uint64_t cookie)
{
	const struct blkkin_probe *probe = current_probe();

	if (probe)
		probe->meeting(span, (uint8_t) side, unique, rule, connection, cookie);
}
