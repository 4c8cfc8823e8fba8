/*
 * blkin's functions. In: calls of code that was written for blkin. Out: events of the provider
 * `zipkin` with blkin's fields.
 *
 * An annotation without an endpoint has that of its trace. The ids are positive, because their
 * fields are signed.
 */
#include <zipkin_c.h>

#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "ids.h"
#include "internal.h"

const char *CLIENT_SEND = "cs";
const char *CLIENT_RECV = "cr";
const char *SERVER_SEND = "ss";
const char *SERVER_RECV = "sr";
const char *WIRE_SEND = "ws";
const char *WIRE_RECV = "wr";
const char *CLIENT_SEND_FRAGMENT = "csf";
const char *CLIENT_RECV_FRAGMENT = "crf";
const char *SERVER_SEND_FRAGMENT = "ssf";
const char *SERVER_RECV_FRAGMENT = "srf";

/* Endpoint of the older generation. */
struct first_endpoint {
	const char *ip;
	int port;
	const char *name;
};

_Static_assert(sizeof(struct first_endpoint) == sizeof(struct blkin_endpoint), "the generations differ only in the port");
_Static_assert(offsetof(struct first_endpoint, name) == offsetof(struct blkin_endpoint, name), "the generations differ only in the port");
_Static_assert(sizeof(struct blkin_trace_info_packed) == 24, "the packed form is 24 bytes");

#pragma GCC visibility push(default)
int blkin_first_init_endpoint(struct first_endpoint *endpoint, const char *ip, int port, const char *name);
int blkin_first_record(const struct blkin_trace *trace, const struct blkin_annotation *annotation);
#pragma GCC visibility pop

static int64_t fresh_id(void)
{
	int64_t id = (int64_t) (blkkin_fresh_id() >> 1);

	return id ? id : 1;
}

int blkin_init(void)
{
	blkkin_init(NULL);
	return 0;
}

int blkin_init_trace_info(struct blkin_trace_info *info)
{
	if (!info)
		return -EINVAL;
	info->trace_id = fresh_id();
	info->span_id = fresh_id();
	info->parent_span_id = 0;
	return 0;
}

static bool zipkin_on(void)
{
	return blkkin_ust_on(BLKKIN_ZIPKIN_TIMESTAMP) || blkkin_ust_on(BLKKIN_ZIPKIN_KEYVAL_STRING) ||
	       blkkin_ust_on(BLKKIN_ZIPKIN_KEYVAL_INTEGER) || blkkin_ust_on(BLKKIN_ZIPKIN_KEYVAL);
}

int blkin_init_new_trace(struct blkin_trace *new_trace, const char *name, const struct blkin_endpoint *endpoint)
{
	const struct blkkin_probe *probe = __atomic_load_n(&blkkin_ust_probe, __ATOMIC_ACQUIRE);
	uint32_t kept = 1000000;

	if (!new_trace)
		return -EINVAL;
	new_trace->name = name;
	new_trace->endpoint = endpoint;
	blkin_init_trace_info(&new_trace->info);
	if (probe && zipkin_on())
		kept = blkkin_keep_root(probe);
	if (!kept)
		memset(&new_trace->info, 0, sizeof new_trace->info);
	else if (kept < 1000000)
		BLKIN_KEYVAL_INTEGER(new_trace, endpoint, "sampled_per_million", kept)
	return 0;
}

int blkin_init_child_info(struct blkin_trace *child, const struct blkin_trace_info *info,
			  const struct blkin_endpoint *endpoint, const char *name)
{
	struct blkin_trace_info parent_info;

	if (!child || !info)
		return -EINVAL;
	parent_info = *info;
	child->name = name;
	child->endpoint = endpoint;
	memset(&child->info, 0, sizeof child->info);
	/* A child of a trace that sampling dropped is dropped too. */
	if (!parent_info.trace_id)
		return 0;
	child->info.trace_id = parent_info.trace_id;
	child->info.span_id = fresh_id();
	child->info.parent_span_id = parent_info.span_id;
	return 0;
}

int blkin_init_child(struct blkin_trace *child, const struct blkin_trace *parent, const struct blkin_endpoint *endpoint,
		     const char *name)
{
	if (!child || !parent)
		return -EINVAL;
	return blkin_init_child_info(child, &parent->info, endpoint ? endpoint : parent->endpoint, name);
}

int blkin_init_endpoint(struct blkin_endpoint *endpoint, const char *ip, int16_t port, const char *name)
{
	if (!endpoint)
		return -EINVAL;
	endpoint->ip = ip;
	endpoint->port = port;
	endpoint->name = name;
	return 0;
}

int blkin_first_init_endpoint(struct first_endpoint *endpoint, const char *ip, int port, const char *name)
{
	if (!endpoint)
		return -EINVAL;
	endpoint->ip = ip;
	endpoint->port = port;
	endpoint->name = name;
	return 0;
}

int blkin_init_string_annotation(struct blkin_annotation *annotation, const char *key, const char *value,
				 const struct blkin_endpoint *endpoint)
{
	if (!annotation || !key || !value)
		return -EINVAL;
	annotation->type = ANNOT_STRING;
	annotation->key = key;
	annotation->val_str = value;
	annotation->endpoint = endpoint;
	return 0;
}

int blkin_init_integer_annotation(struct blkin_annotation *annotation, const char *key, int64_t value,
				  const struct blkin_endpoint *endpoint)
{
	if (!annotation || !key)
		return -EINVAL;
	annotation->type = ANNOT_INTEGER;
	annotation->key = key;
	annotation->val_int = value;
	annotation->endpoint = endpoint;
	return 0;
}

int blkin_init_timestamp_annotation(struct blkin_annotation *annotation, const char *event,
				    const struct blkin_endpoint *endpoint)
{
	if (!annotation || !event)
		return -EINVAL;
	annotation->type = ANNOT_TIMESTAMP;
	annotation->key = NULL;
	annotation->val_str = event;
	annotation->endpoint = endpoint;
	return 0;
}

static int record(const struct blkin_trace *trace, const struct blkin_annotation *annotation, bool first)
{
	const struct blkkin_probe *probe = __atomic_load_n(&blkkin_ust_probe, __ATOMIC_ACQUIRE);
	const struct blkin_endpoint *endpoint;
	struct blkkin_zipkin trace_fields = { 0 };

	if (!trace || !annotation)
		return -EINVAL;
	if ((unsigned) annotation->type > ANNOT_TIMESTAMP)
		return -EINVAL;
	if (!probe || !trace->info.trace_id)
		return 0;
	endpoint = annotation->endpoint ? annotation->endpoint : trace->endpoint;
	trace_fields.trace_name = trace->name;
	if (endpoint) {
		trace_fields.service_name = endpoint->name;
		trace_fields.port_no = first ? ((const struct first_endpoint *) (const void *) endpoint)->port : endpoint->port;
		trace_fields.ip = endpoint->ip;
	}
	trace_fields.trace_id = trace->info.trace_id;
	trace_fields.span_id = trace->info.span_id;
	trace_fields.parent_span_id = trace->info.parent_span_id;
	switch (annotation->type) {
	case ANNOT_STRING:
		(first ? probe->zipkin_keyval : probe->zipkin_keyval_string)(&trace_fields, annotation->key, annotation->val_str);
		break;
	case ANNOT_INTEGER:
		probe->zipkin_keyval_integer(&trace_fields, annotation->key, annotation->val_int);
		break;
	case ANNOT_TIMESTAMP:
		probe->zipkin_timestamp(&trace_fields, annotation->val_str);
		break;
	}
	return 0;
}

int blkin_record(const struct blkin_trace *trace, const struct blkin_annotation *annotation)
{
	return record(trace, annotation, false);
}

int blkin_first_record(const struct blkin_trace *trace, const struct blkin_annotation *annotation)
{
	return record(trace, annotation, true);
}

int blkin_get_trace_info(const struct blkin_trace *trace, struct blkin_trace_info *info)
{
	if (!trace || !info)
		return -EINVAL;
	*info = trace->info;
	return 0;
}

int blkin_set_trace_info(struct blkin_trace *trace, const struct blkin_trace_info *info)
{
	if (!trace || !info)
		return -EINVAL;
	trace->info = *info;
	return 0;
}

int blkin_set_trace_properties(struct blkin_trace *trace, const struct blkin_trace_info *info, const char *name,
			       const struct blkin_endpoint *endpoint)
{
	if (!trace || !info)
		return -EINVAL;
	trace->info = *info;
	trace->name = name;
	trace->endpoint = endpoint;
	return 0;
}

int blkin_pack_trace_info(const struct blkin_trace_info *info, struct blkin_trace_info_packed *packed)
{
	if (!info || !packed)
		return -EINVAL;
	packed->trace_id = htobe64((uint64_t) info->trace_id);
	packed->span_id = htobe64((uint64_t) info->span_id);
	packed->parent_span_id = htobe64((uint64_t) info->parent_span_id);
	return 0;
}

int blkin_unpack_trace_info(const struct blkin_trace_info_packed *packed, struct blkin_trace_info *info)
{
	if (!packed || !info)
		return -EINVAL;
	info->trace_id = (int64_t) be64toh(packed->trace_id);
	info->span_id = (int64_t) be64toh(packed->span_id);
	info->parent_span_id = (int64_t) be64toh(packed->parent_span_id);
	return 0;
}
