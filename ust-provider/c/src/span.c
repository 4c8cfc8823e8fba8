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

uint32_t blkkin_keep_root(const struct blkkin_probe *probe)
{
	static __thread uint32_t drop_next;
	uint64_t decided;

	if (drop_next) {
		drop_next--;
		return 0;
	}
	decided = probe->keep_root(blkkin_fresh_id());
	drop_next = (uint32_t) (decided >> 32);
	return (uint32_t) decided;
}

/* Assigns the ids, and returns whether the span is recorded. */
static bool assign_ids(const struct blkkin_probe *probe, struct blkkin_span *span, uint32_t sampled_per_million)
{
	struct blkkin_context parent = blkkin_context_of(span);

	if (!parent.span || (!parent.trace_hi && !parent.trace_lo)) {
		sampled_per_million = blkkin_keep_root(probe);
		/* The trace id is the root's span id. */
		span->context.span = blkkin_fresh_id();
		span->context =
			(struct blkkin_context) { 0, span->context.span, span->context.span, 0, sampled_per_million != 0 };
	} else if (parent.sampled && sampled_per_million) {
		span->context.span = blkkin_fresh_id();
		span->context.parent = parent.span;
	} else {
		return false;
	}
	span->sampled_per_million = sampled_per_million ? sampled_per_million : BLKKIN_PROPAGATES;
	return sampled_per_million != 0;
}

static void emit_begin(const struct blkkin_probe *probe, const struct blkkin_span *span, enum blkkin_kind kind,
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
	begin.sampled_per_million = span->sampled_per_million;
	begin.name = name;
	begin.service = span->service;
	probe->begin(&begin);
}

/*
 * Begins a span that is not yet recorded and has the context of its parent. Without a context it
 * becomes a root, which sampling may drop. `sampled_per_million` is the sampling ratio of the parent's
 * root, or 0 if the parent is not recorded.
 */
void blkkin_ust_begin(struct blkkin_span *span, uint32_t sampled_per_million, enum blkkin_kind kind, const char *name,
		      enum blkkin_scope scope)
{
	const struct blkkin_probe *probe = current_probe();

	if (probe && assign_ids(probe, span, sampled_per_million))
		emit_begin(probe, span, kind, name, scope);
}

void blkkin_ust_end(const struct blkkin_span *span)
{
	const struct blkkin_probe *probe = current_probe();

	/* The thread may not have left the span. */
	blkkin_ust_unpublish(span->context.span);
	if (probe)
		probe->end(span->context.span, span->status);
}

/*
 * Emits that this thread left one span and entered another; 0 is no span. Each session receives it
 * by the events that it has enabled: see `Table::emit_switch` in `src/probe.rs`.
 */
void blkkin_ust_turn(uint64_t left, uint64_t span)
{
	const struct blkkin_probe *probe = current_probe();

	if (!probe)
		return;
	if (left && span && __atomic_load_n(probe->state[BLKKIN_SWITCH_SPAN], __ATOMIC_RELAXED)) {
		probe->switch_span(left, span);
	} else {
		if (left)
			probe->leave(left);
		if (span)
			probe->enter(span);
	}
	if (__atomic_load_n(&blkkin_ust_publishes, __ATOMIC_RELAXED))
		return;
	if (left)
		probe->unpublished_leave(left);
	if (span)
		probe->unpublished_enter(span);
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

void blkkin_ust_rpc_endpoint(uint64_t span, enum blkkin_rpc_side side, bool unique, const char *protocol, const char *connection,
			     uint64_t cookie)
{
	const struct blkkin_probe *probe = current_probe();

	if (probe)
		probe->rpc_endpoint(span, (uint8_t) side, unique, protocol, connection, cookie);
}
