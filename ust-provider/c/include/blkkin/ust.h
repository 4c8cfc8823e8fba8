/*
 * Spans for storage daemons, as events of LTTng-UST: the C side of the crate blkkin-ust, with the same meaning.
 *
 *	blkkin_init(NULL);				// after daemonizing; the daemon runs with LTTng or without
 *
 *	struct blkkin_span span;
 *	blkkin_begin_root(&span, BLKKIN_SERVER, "READ", "nbd-server", BLKKIN_SCOPED);
 *	blkkin_number(&span, "nbd.offset", offset);
 *	... pread() here is this span's ...
 *	blkkin_end(&span);
 *
 * While nobody traces each call is a load and a comparison (1 ns and less). A span belongs to one thread at a time; it may be
 * handed on. Strings end in a NUL; `service` must live as long as the span, the others only during the call.
 *
 * Link with libblkkin-ust.a and -ldl -lpthread; the README has the rest.
 */
#ifndef BLKKIN_UST_H
#define BLKKIN_UST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* What a span is towards others. */
enum blkkin_kind { BLKKIN_INTERNAL = 0, BLKKIN_SERVER = 1, BLKKIN_CLIENT = 2 };

/* Which end of a request that crosses a connection a span is. */
enum blkkin_rpc_side { BLKKIN_RPC_CLIENT = 0, BLKKIN_RPC_SERVER = 1 };

/* Whether the thread that begins a span works for it until its end; if so it is neither entered nor left. */
enum blkkin_scope { BLKKIN_DETACHED = 0, BLKKIN_SCOPED = 1 };

/* What names a span outside its process. All 0: none, which is what a span has while nobody traces. */
struct blkkin_context {
	uint64_t trace_hi, trace_lo;
	uint64_t span, parent;
	bool sampled;
};

/*
 * One operation of the daemon. The fields are not for users: while nobody traces a root is made by two stores, and of the rest
 * nothing is written that is not read.
 */
struct blkkin_span {
	/* Of its root; 0: not recorded; BLKKIN_PROPAGATES: not recorded, and has a context to carry on. */
	uint32_t kept_per_million;
	int32_t status;
	const char *service;
	/* Under which a thread works for it from begin to end, for who reads threads; 0: none does. */
	uint64_t scope_key;
	/* Written unless kept_per_million is 0. */
	struct blkkin_context context;
};

#define BLKKIN_PROPAGATES UINT32_MAX

struct blkkin_options {
	/*
	 * About so many roots a second are kept, and the others not recorded; 0: all are kept. What BLKKIN_UST_ROOTS in the
	 * environment says counts before this.
	 */
	uint32_t roots_per_second;
	/* Children that are forked are processes of their own in the trace. Else they are silent. */
	bool follow_forks;
	/*
	 * Threads do not publish which span they work for (OpenTelemetry's thread context), as with BLKKIN_UST_CONTEXT=0 in the
	 * environment: for a process in which a tracing library does so for spans of its own.
	 */
	bool no_thread_context;
};

/*
 * Connects the process to LTTng, once; NULL: default options. 0, or a negative errno: ECANCELED (BLKKIN_UST=0 in the
 * environment), ENOSYS (built without LTTng-UST), ELIBACC (its library is not there), ECHILD (forked from a process that was
 * connected). blkkin_init_error() says it in words. The daemon goes on either way.
 */
int blkkin_init(const struct blkkin_options *options);

/* Why blkkin_init() failed; "" if it did not. */
const char *blkkin_init_error(void);

/*
 * Whether threads publish which span they work for, since blkkin_init(): they do so without LTTng too. 0, or a negative errno: EAGAIN (not
 * initialized), ECANCELED (switched off), EBUSY (another library of this process does it), ENOSYS (built without it), or why it cannot
 * be loaded. blkkin_publishing_error() says it in words.
 */
int blkkin_publishing(void);

/* Why blkkin_publishing() is not 0; "" if it is. */
const char *blkkin_publishing_error(void);

/* Something that a process is: `service.name` and what it is. */
struct blkkin_attribute {
	const char *key, *value;
};

/*
 * Says from now on that this process is `attributes`, and nothing else that was said before, where readers outside look for it
 * (OpenTelemetry's process context). To be called after blkkin_init(); about 0.1 ms the first time and 2 us then. A child that is forked
 * says it itself. 0, or a negative errno: ECANCELED (BLKKIN_UST_CONTEXT=0 in the environment), EBUSY (another library of this process
 * does it), E2BIG (more than 64 KiB), or why there is no memory for it.
 */
int blkkin_publish_process(const struct blkkin_attribute *attributes, size_t count);

/*
 * The number of the key of this name (`http.route`) for what threads say of their work: to be asked for after blkkin_init(), once; it is the
 * same each time, also in a forked child, which says it as its own when it says who it is. 0 to 255, or a negative errno: as
 * blkkin_publish_process() and blkkin_publishing(), EINVAL (not 1 to 128 bytes), ENOSPC (there are 256).
 */
int blkkin_thread_key(const char *name);

/*
 * What a thread says of its work besides its span (OpenTelemetry's thread context): values under keys, all together of so many bytes, two
 * more for each. All 0: nothing.
 */
#define BLKKIN_THREAD_ATTRIBUTES_BYTES 228

struct blkkin_thread_attributes {
	uint16_t bytes;
	/* Values that were left out: of more than 255 bytes, without room, or under no key. */
	uint16_t dropped_attributes_count;
	unsigned char entries[BLKKIN_THREAD_ATTRIBUTES_BYTES];
};

/* And this: instead of what was said under that key before. */
void blkkin_add_thread_attribute(struct blkkin_thread_attributes *attributes, int key, const char *value);

/* How many events this process gave to LTTng: what one session recorded and discarded adds up to it. */
uint64_t blkkin_seen_enabled(void);

/* From the call of blkkin_init() to when the events were first found enabled; 0: never yet. */
uint64_t blkkin_time_to_enabled_ns(void);

/* `00-<trace id>-<span id>-<flags>` with its NUL. Not 0: there is no span, and text is "". */
int blkkin_to_traceparent(const struct blkkin_context *context, char text[56]);

/* Not 0: malformed, and the context is none. */
int blkkin_from_traceparent(struct blkkin_context *context, const char *text);

/*
 * blkin's packed trace info. Not 0: it cannot be said in this form (no span, not sampled, or a trace id of more than 64
 * bits), and bytes are 0.
 */
int blkkin_to_blkin(const struct blkkin_context *context, unsigned char bytes[24]);

/* Not 0: it names no span. */
int blkkin_from_blkin(struct blkkin_context *context, const unsigned char bytes[24]);

/* What follows until the inline functions is theirs. */

/* What LTTng writes when a session enables an event, by enum blkkin_event of probe.h; zeros of ours until blkkin_init(). */
extern const int *blkkin_ust_state[16];

/* What threads work for: 0 is not published; 1 is, and nothing was yet; 2 is, and something was. */
extern unsigned char blkkin_ust_publishes;

/* NULL is none. */
void blkkin_ust_publish(uint64_t key, const struct blkkin_context *context);
void blkkin_ust_unpublish(uint64_t key);
uint64_t blkkin_ust_publish_scoped(const struct blkkin_span *span);
void blkkin_ust_set_thread_attributes(uint64_t key, const struct blkkin_thread_attributes *attributes);
void blkkin_ust_begin(struct blkkin_span *span, uint32_t kept_per_million, enum blkkin_kind kind, const char *name,
		      enum blkkin_scope scope);
void blkkin_ust_end(const struct blkkin_span *span);
void blkkin_ust_enter(uint64_t span);
void blkkin_ust_leave(uint64_t span);
void blkkin_ust_event(uint64_t span, const char *name);
void blkkin_ust_text(uint64_t span, const char *key, const char *val);
void blkkin_ust_number(uint64_t span, const char *key, int64_t val);
void blkkin_ust_rpc_endpoint(uint64_t span, enum blkkin_rpc_side side, bool unique, const char *rule, const char *connection,
			uint64_t cookie);

static inline bool blkkin_ust_on(unsigned event)
{
	const int *state = __atomic_load_n(&blkkin_ust_state[event], __ATOMIC_RELAXED);

	return __builtin_expect(__atomic_load_n(state, __ATOMIC_RELAXED) != 0, 0);
}

static inline void blkkin_ust_unrecorded(struct blkkin_span *span, const char *service)
{
	span->kept_per_million = 0;
	span->status = 0;
	span->service = service;
	span->scope_key = 0;
}

/* Not recorded, and with a context to carry on. */
static inline void blkkin_ust_unrecorded_with_context(struct blkkin_span *span, const struct blkkin_context *context, const char *service)
{
	blkkin_ust_unrecorded(span, service);
	span->kept_per_million = BLKKIN_PROPAGATES;
	span->context = *context;
}

/* Whether some session has the events enabled: worth asking before work that is only for a span. */
static inline bool blkkin_enabled(void)
{
	return blkkin_ust_on(0);
}

/* Whether the span's events go to a trace: worth asking before a value is made only for it. */
static inline bool blkkin_is_recording(const struct blkkin_span *span)
{
	return __builtin_expect(span->kept_per_million - 1 < 1000000, 0);
}

/* Not recorded, and with what `parent` carries; which share of its roots they are of, 0 where it is not recorded. */
static inline uint32_t blkkin_ust_unrecorded_child(struct blkkin_span *span, const struct blkkin_span *parent)
{
	uint32_t kept = blkkin_is_recording(parent) ? parent->kept_per_million : 0;

	blkkin_ust_unrecorded(span, parent->service);
	if (parent->kept_per_million) {
		span->kept_per_million = BLKKIN_PROPAGATES;
		span->context = parent->context;
	}
	return kept;
}

/* What to send with a request, for the other end to continue. None while nobody traces. */
static inline struct blkkin_context blkkin_context_of(const struct blkkin_span *span)
{
	const struct blkkin_context none = { 0, 0, 0, 0, false };

	return span->kept_per_million ? span->context : none;
}

/* Whether a span that is entered or left is published, or hides one that was. */
static inline bool blkkin_ust_needs_publishing(const struct blkkin_span *span)
{
	unsigned char publishes = __atomic_load_n(&blkkin_ust_publishes, __ATOMIC_RELAXED);

	return __builtin_expect(publishes != 0, 0) && (publishes == 2 || span->kept_per_million);
}

/* Under which a span is entered and left: what has no id has its address. */
static inline uint64_t blkkin_ust_key(const struct blkkin_span *span)
{
	return span->kept_per_million ? span->context.span : (uint64_t) (uintptr_t) span;
}

static inline void blkkin_ust_begin_scope(struct blkkin_span *span, enum blkkin_scope scope)
{
	if (scope == BLKKIN_SCOPED && blkkin_ust_needs_publishing(span))
		span->scope_key = blkkin_ust_publish_scoped(span);
}

/*
 * Begins what somebody else asked for: a child of the span that `context` names, wherever it is; without one it begins a trace.
 * While nobody traces here the span carries `context` on unchanged.
 */
static inline void blkkin_begin_continued(struct blkkin_span *span, const struct blkkin_context *context,
					  enum blkkin_kind kind, const char *name, const char *service,
					  enum blkkin_scope scope)
{
	blkkin_ust_unrecorded_with_context(span, context, service);
	if (blkkin_ust_on(0))
		blkkin_ust_begin(span, 1000000, kind, name, scope);
	blkkin_ust_begin_scope(span, scope);
}

/* Begins a trace. */
static inline void blkkin_begin_root(struct blkkin_span *span, enum blkkin_kind kind, const char *name,
				     const char *service, enum blkkin_scope scope)
{
	blkkin_ust_unrecorded(span, service);
	if (blkkin_ust_on(0))
		blkkin_ust_begin(span, 1000000, kind, name, scope);
	blkkin_ust_begin_scope(span, scope);
}

/*
 * Begins a part of `parent`'s work, of the same service. Where tracing was off when `parent` began, the part is a root: the span
 * of a connection that is older than the session would hide every request on it.
 */
static inline void blkkin_begin_child(struct blkkin_span *span, const struct blkkin_span *parent, enum blkkin_kind kind,
				      const char *name, enum blkkin_scope scope)
{
	uint32_t kept = blkkin_ust_unrecorded_child(span, parent);

	if (blkkin_ust_on(0))
		blkkin_ust_begin(span, kept, kind, name, scope);
	blkkin_ust_begin_scope(span, scope);
}

/* Ends the span; it may then begin again. */
static inline void blkkin_end(struct blkkin_span *span)
{
	if (__builtin_expect(span->scope_key != 0, 0)) {
		blkkin_ust_unpublish(span->scope_key);
		span->scope_key = 0;
	}
	if (blkkin_is_recording(span))
		blkkin_ust_end(span);
	/* Its context stays readable until it begins again. */
	if (span->kept_per_million)
		span->kept_per_million = BLKKIN_PROPAGATES;
}

/* This thread works for the span from now on. */
static inline void blkkin_enter(const struct blkkin_span *span)
{
	if (blkkin_ust_needs_publishing(span))
		blkkin_ust_publish(blkkin_ust_key(span), span->kept_per_million ? &span->context : NULL);
	if (blkkin_is_recording(span))
		blkkin_ust_enter(span->context.span);
}

/* This thread works for the span no longer: the last entered is the first left. */
static inline void blkkin_leave(const struct blkkin_span *span)
{
	if (blkkin_ust_needs_publishing(span))
		blkkin_ust_unpublish(blkkin_ust_key(span));
	if (blkkin_is_recording(span))
		blkkin_ust_leave(span->context.span);
}

/*
 * What this thread says of the work for a span that it has entered, or that is BLKKIN_SCOPED, until it leaves it or says something else. A
 * span that is entered inside says nothing, until something is said of it.
 */
static inline void blkkin_set_thread_attributes(const struct blkkin_span *span, const struct blkkin_thread_attributes *attributes)
{
	if (blkkin_ust_needs_publishing(span))
		blkkin_ust_set_thread_attributes(span->scope_key ? span->scope_key : blkkin_ust_key(span), attributes);
}

/* A moment in the span. */
static inline void blkkin_event(const struct blkkin_span *span, const char *name)
{
	if (blkkin_is_recording(span))
		blkkin_ust_event(span->context.span, name);
}

/* Says something about the span: `key` is `val`. */
static inline void blkkin_text(const struct blkkin_span *span, const char *key, const char *val)
{
	if (blkkin_is_recording(span))
		blkkin_ust_text(span->context.span, key, val);
}

/* Says a number about the span. */
static inline void blkkin_number(const struct blkkin_span *span, const char *key, int64_t val)
{
	if (blkkin_is_recording(span))
		blkkin_ust_number(span->context.span, key, val);
}

/*
 * The span is one end of a request that crossed `connection` under the protocol's own name `cookie`: both ends that say the same
 * rule, connection and cookie are joined. `connection` names both ends, the asker's first; `unique`: the cookie comes only
 * once on this connection. Who answers another machine says blkkin_event(span, "answers") just before it sends the answer: the asker may
 * have it before the span's end is said.
 */
static inline void blkkin_rpc_endpoint(const struct blkkin_span *span, enum blkkin_rpc_side side, const char *rule,
				  const char *connection, uint64_t cookie, bool unique)
{
	if (blkkin_is_recording(span))
		blkkin_ust_rpc_endpoint(span->context.span, side, unique, rule, connection, cookie);
}

/* It failed with this positive errno; the last one counts. */
static inline void blkkin_fail(struct blkkin_span *span, int error)
{
	span->status = error;
}

/*
 * Several things that are said at one moment, as one event: an event costs about the same whatever is in it. What is said to it is said
 * by blkkin_batch_flush(), which has to come before the thread waits for anything. Strings have to live until then, and names and services as long as the span. `src/together.rs` says how, and why so.
 *
 *	struct blkkin_batch batch;
 *	blkkin_batch_init(&batch);
 *	blkkin_batch_root(&batch, &span, BLKKIN_SERVER, "READ", "nbd-server");
 *	blkkin_batch_number(&batch, &span, "nbd.offset", offset);
 *	blkkin_batch_flush(&batch);
 */
struct blkkin_batch {
	/* Words that wait, strings that have a number, and of whom is what follows. */
	uint32_t length, names_count;
	uint64_t current_span;
	/* Which string comes next, if it is as the last time; where the head of the ends lies that come last, or 256. */
	uint32_t next_name, last_ends;
	/* Not set before they are used. */
	const char *names[32];
	uint64_t words[256];
};

void blkkin_ust_batch_begin(struct blkkin_batch *batch, struct blkkin_span *span, uint32_t kept_per_million,
			       enum blkkin_kind kind, const char *name);
void blkkin_ust_batch_number(struct blkkin_batch *batch, const struct blkkin_span *span, const char *key,
				int64_t val);
void blkkin_ust_batch_text(struct blkkin_batch *batch, const struct blkkin_span *span, const char *key,
			      const char *val);
void blkkin_ust_batch_event(struct blkkin_batch *batch, const struct blkkin_span *span, const char *name);
void blkkin_ust_batch_rpc_endpoint(struct blkkin_batch *batch, const struct blkkin_span *span, enum blkkin_rpc_side side,
				 const char *rule, const char *connection, uint64_t cookie, bool unique);
void blkkin_ust_batch_end(struct blkkin_batch *batch, struct blkkin_span *span);
void blkkin_ust_batch_flush(struct blkkin_batch *batch);
void blkkin_ust_turn(uint64_t left, uint64_t span);

/* Nothing is said yet. */
static inline void blkkin_batch_init(struct blkkin_batch *batch)
{
	batch->length = 0;
	batch->names_count = 0;
	batch->current_span = 0;
	batch->next_name = 0;
	batch->last_ends = sizeof batch->words / sizeof batch->words[0];
}

/* As blkkin_begin_continued, elsewhere. */
static inline void blkkin_batch_continued(struct blkkin_batch *batch, struct blkkin_span *span,
					     const struct blkkin_context *context, enum blkkin_kind kind, const char *name,
					     const char *service)
{
	blkkin_ust_unrecorded_with_context(span, context, service);
	if (blkkin_ust_on(0))
		blkkin_ust_batch_begin(batch, span, 1000000, kind, name);
}

/* As blkkin_begin_root, elsewhere. */
static inline void blkkin_batch_root(struct blkkin_batch *batch, struct blkkin_span *span, enum blkkin_kind kind,
					const char *name, const char *service)
{
	blkkin_ust_unrecorded(span, service);
	if (blkkin_ust_on(0))
		blkkin_ust_batch_begin(batch, span, 1000000, kind, name);
}

/* As blkkin_begin_child, elsewhere. */
static inline void blkkin_batch_child(struct blkkin_batch *batch, struct blkkin_span *span,
					 const struct blkkin_span *parent, enum blkkin_kind kind, const char *name)
{
	uint32_t kept = blkkin_ust_unrecorded_child(span, parent);

	if (blkkin_ust_on(0))
		blkkin_ust_batch_begin(batch, span, kept, kind, name);
}

static inline void blkkin_batch_number(struct blkkin_batch *batch, const struct blkkin_span *span, const char *key,
					  int64_t val)
{
	if (blkkin_is_recording(span))
		blkkin_ust_batch_number(batch, span, key, val);
}

static inline void blkkin_batch_text(struct blkkin_batch *batch, const struct blkkin_span *span, const char *key,
					const char *val)
{
	if (blkkin_is_recording(span))
		blkkin_ust_batch_text(batch, span, key, val);
}

static inline void blkkin_batch_event(struct blkkin_batch *batch, const struct blkkin_span *span, const char *name)
{
	if (blkkin_is_recording(span))
		blkkin_ust_batch_event(batch, span, name);
}

static inline void blkkin_batch_rpc_endpoint(struct blkkin_batch *batch, const struct blkkin_span *span,
					   enum blkkin_rpc_side side, const char *rule, const char *connection, uint64_t cookie,
					   bool unique)
{
	if (blkkin_is_recording(span))
		blkkin_ust_batch_rpc_endpoint(batch, span, side, rule, connection, cookie, unique);
}

/* As blkkin_end. */
static inline void blkkin_batch_end(struct blkkin_batch *batch, struct blkkin_span *span)
{
	if (blkkin_is_recording(span))
		blkkin_ust_batch_end(batch, span);
	blkkin_end(span);
}

/* Says it. What comes then is another event. */
static inline void blkkin_batch_flush(struct blkkin_batch *batch)
{
	if (__builtin_expect(batch->length != 0, 0))
		blkkin_ust_batch_flush(batch);
}

/*
 * A thread that works for one span after another with no call of the kernel between them: an event a span instead of two. Before it does
 * something that is for none of them it has to rest.
 */
struct blkkin_sequence {
	/* The span that is worked for, if it is recorded; 0: it is not. */
	uint64_t span;
	/* Under which it is published, if it is. */
	uint64_t key;
	bool published;
};

#define BLKKIN_SEQUENCE_INIT { 0, 0, false }

static inline void blkkin_ust_sequence_switch(struct blkkin_sequence *sequence, uint64_t next)
{
	uint64_t before = sequence->span;

	sequence->span = next;
	if (__builtin_expect(before != next, 0))
		blkkin_ust_turn(before, next);
}

/* This thread works for the span from now on, and no longer for the one before. */
static inline void blkkin_sequence_enter(struct blkkin_sequence *sequence, const struct blkkin_span *span)
{
	if (sequence->published)
		blkkin_ust_unpublish(sequence->key);
	sequence->published = blkkin_ust_needs_publishing(span);
	if (sequence->published) {
		sequence->key = blkkin_ust_key(span);
		blkkin_ust_publish(sequence->key, span->kept_per_million ? &span->context : NULL);
	}
	blkkin_ust_sequence_switch(sequence, blkkin_is_recording(span) ? span->context.span : 0);
}

/* This thread works for none of them any more. */
static inline void blkkin_sequence_exit(struct blkkin_sequence *sequence)
{
	if (sequence->published)
		blkkin_ust_unpublish(sequence->key);
	sequence->published = false;
	blkkin_ust_sequence_switch(sequence, 0);
}

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
