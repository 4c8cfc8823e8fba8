/*
 * Spans for storage daemons, emitted as events of LTTng-UST: the C API of the crate blkkin-ust.
 *
 *	blkkin_init(NULL);	// after daemonizing; the daemon also runs without LTTng
 *
 *	struct blkkin_span span;
 *	blkkin_begin_root(&span, BLKKIN_SERVER, "READ", "nbd-server", BLKKIN_SCOPED);
 *	blkkin_number(&span, "nbd.offset", offset);
 *	... a pread() here becomes a child of the span ...
 *	blkkin_end(&span);
 *
 * While no session records, a call costs a load and a comparison (up to 1 ns). One thread at a time
 * may use a span; it may move to another thread. Strings end in a NUL. `service` must live as long
 * as the span, other strings only during the call.
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

/* Role of a span in an exchange, as in OpenTelemetry. */
enum blkkin_kind { BLKKIN_INTERNAL = 0, BLKKIN_SERVER = 1, BLKKIN_CLIENT = 2 };

/* Side of a request that crosses a connection. */
enum blkkin_rpc_side { BLKKIN_RPC_CLIENT = 0, BLKKIN_RPC_SERVER = 1 };

/*
 * Whether the thread that begins a span works for it until its end. Such a span is neither entered
 * nor left.
 */
enum blkkin_scope { BLKKIN_DETACHED = 0, BLKKIN_SCOPED = 1 };

/* Ids of a span. All 0: no span, as while no session records. */
struct blkkin_context {
	uint64_t trace_hi, trace_lo;
	uint64_t span, parent;
	bool sampled;
};

/*
 * An operation of the daemon. The fields are private: while no session records, making a root
 * writes two words, and a field that is never read is not written.
 */
struct blkkin_span {
	/*
	 * Sampling ratio of the root; 0: not recorded; BLKKIN_PROPAGATES: not recorded, with a
	 * context to propagate.
	 */
	uint32_t sampled_per_million;
	int32_t status;
	const char *service;
	/* Key of the thread context that is published from begin to end; 0 for none. */
	uint64_t scope_key;
	/* Written unless sampled_per_million is 0. */
	struct blkkin_context context;
};

#define BLKKIN_PROPAGATES UINT32_MAX

#define BLKKIN_ALL_ROOTS UINT32_MAX

struct blkkin_options {
	/*
	 * Target number of roots per second that sampling keeps; 0 selects the default of 1,000,
	 * BLKKIN_ALL_ROOTS keeps all. BLKKIN_UST_ROOTS in the environment overrides it (0 keeps
	 * all).
	 */
	uint32_t roots_per_second;
	/*
	 * Connects forked children to LTTng as processes of their own. Otherwise they emit nothing.
	 */
	bool follow_forks;
	/*
	 * Disables publishing of each thread's current span (OpenTelemetry's thread context), as
	 * BLKKIN_UST_CONTEXT=0 in the environment does. Set it if another tracing library of the
	 * process publishes its own spans.
	 */
	bool no_thread_context;
};

/*
 * Connects the process to LTTng, once. NULL selects the default options. Returns 0 or a negative
 * errno: ECANCELED (BLKKIN_UST=0 in the environment), ENOSYS (built without LTTng-UST), ELIBACC
 * (its library is missing), ECHILD (forked from a process that was connected). blkkin_init_error()
 * returns the reason. The daemon keeps running in every case.
 */
int blkkin_init(const struct blkkin_options *options);

/* Returns why blkkin_init() failed, or "". */
const char *blkkin_init_error(void);

/*
 * Returns whether threads publish their current span since blkkin_init(); they do so without LTTng
 * too. 0 or a negative errno: EAGAIN (not initialized), ECANCELED (disabled), EBUSY (another
 * library of this process publishes), ENOSYS (built without the slot), or the errno of loading it.
 * blkkin_publishing_error() returns the reason.
 */
int blkkin_publishing(void);

/* Returns why blkkin_publishing() is not 0, or "". */
const char *blkkin_publishing_error(void);

/* Resource attribute of the process, such as `service.name`. */
struct blkkin_attribute {
	const char *key, *value;
};

/*
 * Publishes the resource attributes of this process (OpenTelemetry's process context), in place of
 * those that it published before. Call it after blkkin_init(). The first call takes about 0.1 ms,
 * later ones 2 us. A forked child must publish its own. Returns 0 or a negative errno: ECANCELED
 * (BLKKIN_UST_CONTEXT=0 in the environment), EBUSY (another library of this process publishes one),
 * E2BIG (more than 64 KiB), or the errno of allocating memory.
 */
int blkkin_publish_process(const struct blkkin_attribute *attributes, size_t count);

/*
 * Registers the name of a thread attribute (`http.route`) and returns its key. Call it once per
 * name, after blkkin_init(). Later calls return the same key. The key stays valid in a forked
 * child, which publishes it with its own process context. Returns 0 to 255, or a negative errno:
 * those of blkkin_publish_process() and blkkin_publishing(), EINVAL (not 1 to 128 bytes), ENOSPC
 * (256 keys exist).
 */
int blkkin_thread_key(const char *name);

/*
 * Attributes of a thread's work (OpenTelemetry's thread context), of up to 228 bytes. Each takes
 * its value's bytes and two more. All 0: an empty set.
 */
#define BLKKIN_THREAD_ATTRIBUTES_BYTES 228

struct blkkin_thread_attributes {
	uint16_t bytes;
	/* Values that were dropped: longer than 255 bytes, without room, or without a key. */
	uint16_t dropped_attributes_count;
	unsigned char entries[BLKKIN_THREAD_ATTRIBUTES_BYTES];
};

/* Adds an attribute, or replaces the value of its key. */
void blkkin_add_thread_attribute(struct blkkin_thread_attributes *attributes, int key, const char *value);

/* Returns the number of events passed to LTTng: those that one session recorded and discarded. */
uint64_t blkkin_seen_enabled(void);

/*
 * Returns the time from the call of blkkin_init() until the events were first found enabled; 0 if
 * they were not.
 */
uint64_t blkkin_time_to_enabled_ns(void);

/*
 * Encodes a context as `00-<trace id>-<span id>-<flags>` with a NUL. Returns nonzero, and "", if
 * there is no span.
 */
int blkkin_to_traceparent(const struct blkkin_context *context, char text[56]);

/* Decodes a traceparent. Returns nonzero, and no context, if it is malformed. */
int blkkin_from_traceparent(struct blkkin_context *context, const char *text);

/*
 * Encodes a context as blkin's packed trace info. Returns nonzero, and zeros, if this format cannot
 * represent it (no span, not sampled, or a trace id of more than 64 bits).
 */
int blkkin_to_blkin(const struct blkkin_context *context, unsigned char bytes[24]);

/* Decodes blkin's packed trace info. Returns nonzero if it names no span. */
int blkkin_from_blkin(struct blkkin_context *context, const unsigned char bytes[24]);

/* Private to the inline functions below. */

/*
 * Words that LTTng sets to nonzero when a session enables an event, by enum blkkin_event of
 * probe.h. They are zeros of this library until blkkin_init().
 */
extern const int *blkkin_ust_state[15];

/*
 * State of publishing thread contexts: 0 disabled, 1 enabled and nothing published yet, 2 something
 * published.
 */
extern unsigned char blkkin_ust_publishes;

/* Enters a context; NULL is none. */
void blkkin_ust_publish(uint64_t key, const struct blkkin_context *context);
void blkkin_ust_unpublish(uint64_t key);
uint64_t blkkin_ust_publish_scoped(const struct blkkin_span *span);
void blkkin_ust_set_thread_attributes(uint64_t key, const struct blkkin_thread_attributes *attributes);
void blkkin_ust_begin(struct blkkin_span *span, uint32_t sampled_per_million, enum blkkin_kind kind, const char *name,
		      enum blkkin_scope scope);
void blkkin_ust_end(const struct blkkin_span *span);
/* Leaves one span and enters another; 0 is none. */
void blkkin_ust_turn(uint64_t left, uint64_t span);
void blkkin_ust_event(uint64_t span, const char *name);
void blkkin_ust_text(uint64_t span, const char *key, const char *val);
void blkkin_ust_number(uint64_t span, const char *key, int64_t val);
void blkkin_ust_rpc_endpoint(uint64_t span, enum blkkin_rpc_side side, bool unique, const char *protocol, const char *connection,
			     uint64_t cookie);

static inline bool blkkin_ust_on(unsigned event)
{
	const int *state = __atomic_load_n(&blkkin_ust_state[event], __ATOMIC_RELAXED);

	return __builtin_expect(__atomic_load_n(state, __ATOMIC_RELAXED) != 0, 0);
}

static inline void blkkin_ust_unrecorded(struct blkkin_span *span, const char *service)
{
	span->sampled_per_million = 0;
	span->status = 0;
	span->service = service;
	span->scope_key = 0;
}

/* Makes a span that is not yet recorded, with a context to propagate. */
static inline void blkkin_ust_unrecorded_with_context(struct blkkin_span *span, const struct blkkin_context *context, const char *service)
{
	blkkin_ust_unrecorded(span, service);
	span->sampled_per_million = BLKKIN_PROPAGATES;
	span->context = *context;
}

/* Returns whether a session has the events enabled. Check it before work that only a span needs. */
static inline bool blkkin_enabled(void)
{
	return blkkin_ust_on(0);
}

/*
 * Returns whether the events of the span are recorded. Check it before computing a value only for
 * it.
 */
static inline bool blkkin_is_recording(const struct blkkin_span *span)
{
	return __builtin_expect(span->sampled_per_million - 1 < 1000000, 0);
}

/*
 * Makes a child that is not yet recorded. Returns the sampling ratio of its root, or 0 if the
 * parent is not recorded.
 */
static inline uint32_t blkkin_ust_unrecorded_child(struct blkkin_span *span, const struct blkkin_span *parent)
{
	uint32_t kept = blkkin_is_recording(parent) ? parent->sampled_per_million : 0;

	blkkin_ust_unrecorded(span, parent->service);
	if (parent->sampled_per_million) {
		span->sampled_per_million = BLKKIN_PROPAGATES;
		span->context = parent->context;
	}
	return kept;
}

/*
 * Returns the context to send with a request, which the server continues. None while no session
 * records.
 */
static inline struct blkkin_context blkkin_context_of(const struct blkkin_span *span)
{
	const struct blkkin_context none = { 0, 0, 0, 0, false };

	return span->sampled_per_million ? span->context : none;
}

/*
 * Returns whether entering or leaving a span changes the published context: it has one, or may hide
 * one.
 */
static inline bool blkkin_ust_needs_publishing(const struct blkkin_span *span)
{
	unsigned char publishes = __atomic_load_n(&blkkin_ust_publishes, __ATOMIC_RELAXED);

	return __builtin_expect(publishes != 0, 0) && (publishes == 2 || span->sampled_per_million);
}

/* Returns the key by which a span is entered and left. A span without an id uses its address. */
static inline uint64_t blkkin_ust_key(const struct blkkin_span *span)
{
	return span->sampled_per_million ? span->context.span : (uint64_t) (uintptr_t) span;
}

static inline void blkkin_ust_begin_scope(struct blkkin_span *span, enum blkkin_scope scope)
{
	if (scope == BLKKIN_SCOPED && blkkin_ust_needs_publishing(span))
		span->scope_key = blkkin_ust_publish_scoped(span);
}

/*
 * Begins a child of a remote span, which `context` names. With no context it begins a trace. While
 * no session records, the span propagates `context` unchanged.
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

/* Begins a root span, and with it a trace. */
static inline void blkkin_begin_root(struct blkkin_span *span, enum blkkin_kind kind, const char *name,
				     const char *service, enum blkkin_scope scope)
{
	blkkin_ust_unrecorded(span, service);
	if (blkkin_ust_on(0))
		blkkin_ust_begin(span, 1000000, kind, name, scope);
	blkkin_ust_begin_scope(span, scope);
}

/*
 * Begins a child of `parent`, of the same service. If tracing was off when `parent` began, the
 * child is a root. Otherwise the span of a connection that is older than the session would hide
 * every request on it.
 */
static inline void blkkin_begin_child(struct blkkin_span *span, const struct blkkin_span *parent, enum blkkin_kind kind,
				      const char *name, enum blkkin_scope scope)
{
	uint32_t kept = blkkin_ust_unrecorded_child(span, parent);

	if (blkkin_ust_on(0))
		blkkin_ust_begin(span, kept, kind, name, scope);
	blkkin_ust_begin_scope(span, scope);
}

/* Ends the span. It may then begin again. */
static inline void blkkin_end(struct blkkin_span *span)
{
	if (__builtin_expect(span->scope_key != 0, 0)) {
		blkkin_ust_unpublish(span->scope_key);
		span->scope_key = 0;
	}
	if (blkkin_is_recording(span))
		blkkin_ust_end(span);
	/* The context stays readable until the span begins again. */
	if (span->sampled_per_million)
		span->sampled_per_million = BLKKIN_PROPAGATES;
}

/* Makes the span the current one of this thread. */
static inline void blkkin_enter(const struct blkkin_span *span)
{
	if (blkkin_ust_needs_publishing(span))
		blkkin_ust_publish(blkkin_ust_key(span), span->sampled_per_million ? &span->context : NULL);
	if (blkkin_is_recording(span))
		blkkin_ust_turn(0, span->context.span);
}

/* Leaves the span. Spans nest: the last one entered is left first. */
static inline void blkkin_leave(const struct blkkin_span *span)
{
	if (blkkin_ust_needs_publishing(span))
		blkkin_ust_unpublish(blkkin_ust_key(span));
	if (blkkin_is_recording(span))
		blkkin_ust_turn(span->context.span, 0);
}

/*
 * Publishes attributes of this thread's work, for a span that it has entered or that is
 * BLKKIN_SCOPED, until it leaves the span or sets others. A span that is entered inside has none
 * until they are set for it.
 */
static inline void blkkin_set_thread_attributes(const struct blkkin_span *span, const struct blkkin_thread_attributes *attributes)
{
	if (blkkin_ust_needs_publishing(span))
		blkkin_ust_set_thread_attributes(span->scope_key ? span->scope_key : blkkin_ust_key(span), attributes);
}

/* Adds an event at the current time. */
static inline void blkkin_event(const struct blkkin_span *span, const char *name)
{
	if (blkkin_is_recording(span))
		blkkin_ust_event(span->context.span, name);
}

/* Sets an attribute to a string. */
static inline void blkkin_text(const struct blkkin_span *span, const char *key, const char *val)
{
	if (blkkin_is_recording(span))
		blkkin_ust_text(span->context.span, key, val);
}

/* Sets an attribute to a number. */
static inline void blkkin_number(const struct blkkin_span *span, const char *key, int64_t val)
{
	if (blkkin_is_recording(span))
		blkkin_ust_number(span->context.span, key, val);
}

/*
 * Marks the span as one endpoint of a request that crossed `connection`. `cookie` is the protocol's
 * own id of the request. Two endpoints with the same protocol, connection and cookie are linked.
 * `connection` names both addresses, the client's first. `unique` states that a cookie occurs only
 * once on this connection.
 *
 * A server on another machine calls blkkin_event(span, "answers") just before it sends the reply.
 * The client may have the reply before the end of the span is emitted.
 */
static inline void blkkin_rpc_endpoint(const struct blkkin_span *span, enum blkkin_rpc_side side, const char *protocol,
				       const char *connection, uint64_t cookie, bool unique)
{
	if (blkkin_is_recording(span))
		blkkin_ust_rpc_endpoint(span->context.span, side, unique, protocol, connection, cookie);
}

/* Sets the error of the operation to a positive errno. The last call counts. */
static inline void blkkin_fail(struct blkkin_span *span, int error)
{
	span->status = error;
}

/*
 * Sequence: the current span of a thread, one after another without a system call in between. It
 * takes one event per span instead of two. Call blkkin_sequence_exit() before work for none of the
 * spans.
 */
struct blkkin_sequence {
	/* Id of the current span if it is recorded, or 0. */
	uint64_t span;
	/* Key of the published thread context, if any. */
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

/* Makes the span the current one, in place of the previous one. */
static inline void blkkin_sequence_enter(struct blkkin_sequence *sequence, const struct blkkin_span *span)
{
	if (sequence->published)
		blkkin_ust_unpublish(sequence->key);
	sequence->published = blkkin_ust_needs_publishing(span);
	if (sequence->published) {
		sequence->key = blkkin_ust_key(span);
		blkkin_ust_publish(sequence->key, span->sampled_per_million ? &span->context : NULL);
	}
	blkkin_ust_sequence_switch(sequence, blkkin_is_recording(span) ? span->context.span : 0);
}

/* Leaves the current span. */
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
