/*
 * blkin's C API by its names, so that code written for it keeps working: the same types, functions
 * and macros, and the same events of the provider `zipkin`. Independently written.
 *
 * Differences: nothing needs liblttng-ust to start. blkin_init() succeeds without it, and
 * blkkin_init_error() of <blkkin/ust.h> returns the reason. A trace with id 0 emits nothing.
 * blkin_init_new_trace() gives that id to the traces that sampling drops (BLKKIN_UST_ROOTS), and
 * annotates those that it keeps meanwhile with `sampled_per_million`.
 *
 * Define BLKIN_FIRST_GENERATION before including this for the older generation's fields
 * (trace_endpoint, annotation_endpoint, an int port) and its event zipkin:keyval in place of
 * zipkin:keyval_string.
 *
 * Strings are not copied: they must live as long as the structs that point to them.
 */
#ifndef ZIPKIN_C_H
#define ZIPKIN_C_H

#include <linux/types.h>
#include <stdint.h>

#include <blkkin/ust.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct blkin_endpoint {
	const char *ip;
#ifdef BLKIN_FIRST_GENERATION
	int port;
#else
	int16_t port;
#endif
	const char *name;
};

struct blkin_trace_info {
	int64_t trace_id;
	int64_t span_id;
	/* 0 for a root. */
	int64_t parent_span_id;
};

/* Wire format of the trace info: 24 bytes, big-endian. */
struct blkin_trace_info_packed {
	__be64 trace_id;
	__be64 span_id;
	__be64 parent_span_id;
} __attribute__((packed));

struct blkin_trace {
	const char *name;
	struct blkin_trace_info info;
#ifdef BLKIN_FIRST_GENERATION
	const struct blkin_endpoint *trace_endpoint;
#else
	const struct blkin_endpoint *endpoint;
#endif
};

typedef enum { ANNOT_STRING = 0, ANNOT_INTEGER = 1, ANNOT_TIMESTAMP = 2 } blkin_annotation_type;

struct blkin_annotation {
	blkin_annotation_type type;
	const char *key;
	union {
		const char *val_str;
		int64_t val_int;
	};
#ifdef BLKIN_FIRST_GENERATION
	const struct blkin_endpoint *annotation_endpoint;
#else
	const struct blkin_endpoint *endpoint;
#endif
};

/* Zipkin's names for the events of a request. */
extern const char *CLIENT_SEND;
extern const char *CLIENT_RECV;
extern const char *SERVER_SEND;
extern const char *SERVER_RECV;
extern const char *WIRE_SEND;
extern const char *WIRE_RECV;
extern const char *CLIENT_SEND_FRAGMENT;
extern const char *CLIENT_RECV_FRAGMENT;
extern const char *SERVER_SEND_FRAGMENT;
extern const char *SERVER_RECV_FRAGMENT;

/* All functions return 0 or a negative errno (EINVAL for a null argument). */

int blkin_init(void);
int blkin_init_new_trace(struct blkin_trace *new_trace, const char *name, const struct blkin_endpoint *endpoint);
int blkin_init_trace_info(struct blkin_trace_info *info);
int blkin_init_child(struct blkin_trace *child, const struct blkin_trace *parent, const struct blkin_endpoint *endpoint,
		     const char *name);
int blkin_init_child_info(struct blkin_trace *child, const struct blkin_trace_info *info,
			  const struct blkin_endpoint *endpoint, const char *name);
int blkin_init_string_annotation(struct blkin_annotation *annotation, const char *key, const char *value,
				 const struct blkin_endpoint *endpoint);
int blkin_init_integer_annotation(struct blkin_annotation *annotation, const char *key, int64_t value,
				  const struct blkin_endpoint *endpoint);
int blkin_init_timestamp_annotation(struct blkin_annotation *annotation, const char *event,
				    const struct blkin_endpoint *endpoint);
int blkin_get_trace_info(const struct blkin_trace *trace, struct blkin_trace_info *info);
int blkin_set_trace_info(struct blkin_trace *trace, const struct blkin_trace_info *info);
int blkin_set_trace_properties(struct blkin_trace *trace, const struct blkin_trace_info *info, const char *name,
			       const struct blkin_endpoint *endpoint);
int blkin_pack_trace_info(const struct blkin_trace_info *info, struct blkin_trace_info_packed *packed);
int blkin_unpack_trace_info(const struct blkin_trace_info_packed *packed, struct blkin_trace_info *info);

/* Functions that access an endpoint, whose port has two widths. */
#ifdef BLKIN_FIRST_GENERATION
#define blkin_init_endpoint blkin_first_init_endpoint
#define blkin_record blkin_first_record
int blkin_init_endpoint(struct blkin_endpoint *endpoint, const char *ip, int port, const char *name);
#else
int blkin_init_endpoint(struct blkin_endpoint *endpoint, const char *ip, int16_t port, const char *name);
#endif
int blkin_record(const struct blkin_trace *trace, const struct blkin_annotation *annotation);

/* Indices of the events of provider zipkin in the states. */
#define BLKKIN_ON_ZIPKIN_TIMESTAMP 8
#define BLKKIN_ON_ZIPKIN_INTEGER 10
#ifdef BLKIN_FIRST_GENERATION
#define BLKKIN_ON_ZIPKIN_STRING 11
#else
#define BLKKIN_ON_ZIPKIN_STRING 9
#endif

/* Macros that annotate and record. While no session records, they only evaluate their arguments. */
#define BLKIN_TIMESTAMP(trace, endp, event)								\
	do {												\
		const struct blkin_trace *blkin_trace_ = (trace);					\
		const struct blkin_endpoint *blkin_endpoint_ = (endp);					\
		const char *blkin_event_ = (event);							\
													\
		if (blkkin_ust_on(BLKKIN_ON_ZIPKIN_TIMESTAMP)) {					\
			struct blkin_annotation blkin_annotation_;					\
													\
			blkin_init_timestamp_annotation(&blkin_annotation_, blkin_event_, blkin_endpoint_);	\
			blkin_record(blkin_trace_, &blkin_annotation_);					\
		}											\
	} while (0);

#define BLKIN_KEYVAL_STRING(trace, endp, key, val)							\
	do {												\
		const struct blkin_trace *blkin_trace_ = (trace);					\
		const struct blkin_endpoint *blkin_endpoint_ = (endp);					\
		const char *blkin_key_ = (key), *blkin_value_ = (val);					\
													\
		if (blkkin_ust_on(BLKKIN_ON_ZIPKIN_STRING)) {						\
			struct blkin_annotation blkin_annotation_;					\
													\
			blkin_init_string_annotation(&blkin_annotation_, blkin_key_, blkin_value_, blkin_endpoint_); \
			blkin_record(blkin_trace_, &blkin_annotation_);					\
		}											\
	} while (0);

#define BLKIN_KEYVAL_INTEGER(trace, endp, key, val)							\
	do {												\
		const struct blkin_trace *blkin_trace_ = (trace);					\
		const struct blkin_endpoint *blkin_endpoint_ = (endp);					\
		const char *blkin_key_ = (key);								\
		int64_t blkin_value_ = (val);								\
													\
		if (blkkin_ust_on(BLKKIN_ON_ZIPKIN_INTEGER)) {						\
			struct blkin_annotation blkin_annotation_;					\
													\
			blkin_init_integer_annotation(&blkin_annotation_, blkin_key_, blkin_value_, blkin_endpoint_); \
			blkin_record(blkin_trace_, &blkin_annotation_);					\
		}											\
	} while (0);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
