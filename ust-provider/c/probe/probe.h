/*
 * Interface between a program and the probe, the shared object that links to LTTng.
 *
 * The program embeds the probe, loads it in init(), and looks up `blkkin_probe`. Both are built
 * from the same sources at the same time. `abi` and `size` are compared nevertheless, because a
 * program may have two copies of this library. `src/probe.rs` has the same in Rust. Functions have
 * the names of their LTTng events.
 */
#ifndef BLKKIN_PROBE_H
#define BLKKIN_PROBE_H

#include <stdint.h>

#define BLKKIN_PROBE_ABI 3

/* Events by their index in blkkin_probe.state: provider blkkin's, then provider zipkin's. */
enum blkkin_event {
	BLKKIN_BEGIN,
	BLKKIN_END,
	BLKKIN_ENTER,
	BLKKIN_LEAVE,
	BLKKIN_EVENT,
	BLKKIN_TEXT,
	BLKKIN_NUMBER,
	BLKKIN_RPC_ENDPOINT,
	BLKKIN_ZIPKIN_TIMESTAMP,
	BLKKIN_ZIPKIN_KEYVAL_STRING,
	BLKKIN_ZIPKIN_KEYVAL_INTEGER,
	BLKKIN_ZIPKIN_KEYVAL,
	/* Added later: installed headers have the numbers of those before. */
	BLKKIN_SWITCH_SPAN,
	BLKKIN_UNPUBLISHED_ENTER,
	BLKKIN_UNPUBLISHED_LEAVE,
	BLKKIN_EVENTS
};

struct blkkin_begin {
	uint64_t trace_hi, trace_lo, span, parent;
	uint8_t kind, on;
	uint16_t padding;
	uint32_t sampled_per_million;
	const char *name, *service;
};

/* Common fields of the events of provider zipkin, in their order. */
struct blkkin_zipkin {
	const char *trace_name, *service_name;
	int port_no;
	const char *ip;
	int64_t trace_id, span_id, parent_span_id;
};

struct blkkin_probe {
	uint32_t abi, size;
	/* Words that LTTng sets to nonzero when a session enables the event. */
	const int *state[BLKKIN_EVENTS];
	void (*begin)(const struct blkkin_begin *begin);
	void (*end)(uint64_t span, int32_t status);
	void (*enter)(uint64_t span);
	void (*leave)(uint64_t span);
	void (*event)(uint64_t span, const char *name);
	void (*text)(uint64_t span, const char *key, const char *val);
	void (*number)(uint64_t span, const char *key, int64_t val);
	void (*rpc_endpoint)(uint64_t span, uint8_t side, uint8_t unique, const char *protocol, const char *connection,
			uint64_t cookie);
	void (*switch_span)(uint64_t left, uint64_t span);
	void (*unpublished_enter)(uint64_t span);
	void (*unpublished_leave)(uint64_t span);
	/*
	 * Returns the sampling ratio of a root that begins now, per million, or 0 if it is dropped;
	 * and in the upper 32 bits how many of this thread's next roots are dropped without asking.
	 * Takes 64 random bits.
	 */
	uint64_t (*keep_root)(uint64_t random);
	/* Sets the target number of roots per second, before the first root; 0 keeps all. */
	void (*set_rate)(uint32_t roots_per_second);
	/*
	 * Returns the number of events passed to LTTng: those that its sessions recorded and
	 * discarded.
	 */
	uint64_t (*seen_enabled)(void);
	/* Returns the time of the first of these events, by CLOCK_MONOTONIC, or 0. */
	uint64_t (*first_enabled_ns)(void);
	/* Registers forked children as processes of their own. Returns 0 or an errno. */
	int (*follow_forks)(void);
	void (*zipkin_timestamp)(const struct blkkin_zipkin *trace, const char *event);
	void (*zipkin_keyval_string)(const struct blkkin_zipkin *trace, const char *key, const char *val);
	void (*zipkin_keyval_integer)(const struct blkkin_zipkin *trace, const char *key, int64_t val);
	void (*zipkin_keyval)(const struct blkkin_zipkin *trace, const char *key, const char *val);
};

#endif
