/*
 * blkin's C++ wrapper by its names, over the C API of <zipkin_c.h>. Independently written.
 *
 * A `const char *` is not copied and must live as long as the object. A std::string is copied, and
 * so are the arguments of copy_name() and copy_ip(). A copy of an object copies what the original
 * had copied.
 *
 * BLKIN_FIRST_GENERATION adds the older generation's names, ZTrace and ZTraceEndpoint.
 */
#ifndef ZTRACER_HPP
#define ZTRACER_HPP

#include <string>
#include <type_traits>

#include "zipkin_c.h"

namespace ZTracer {

/* Connects the process. Returns 0 even if LTTng is missing. */
static inline int ztrace_init()
{
	return blkin_init();
}

/* Endpoint of an annotation: a service and its address. */
class Endpoint : private blkin_endpoint {
	friend class Trace;

	std::string own_ip, own_name;

public:
	explicit Endpoint(const char *name)
	{
		blkin_init_endpoint(this, "", 0, name);
	}

	Endpoint(const char *ip, int port, const char *name)
	{
		blkin_init_endpoint(this, ip, static_cast<decltype(blkin_endpoint::port)>(port), name);
	}

	explicit Endpoint(const std::string &name) : Endpoint("")
	{
		copy_name(name);
	}

	Endpoint(const std::string &ip, int port, const std::string &name) : Endpoint("", port, "")
	{
		copy_ip(ip);
		copy_name(name);
	}

	Endpoint(const Endpoint &other) : blkin_endpoint(other)
	{
		take(other);
	}

	Endpoint &operator=(const Endpoint &other)
	{
		if (this != &other) {
			static_cast<blkin_endpoint &>(*this) = other;
			take(other);
		}
		return *this;
	}

	void copy_ip(const std::string &from)
	{
		own_ip = from;
		ip = own_ip.c_str();
	}

	void copy_name(const std::string &from)
	{
		own_name = from;
		name = own_name.c_str();
	}

	/* Copies address and port. */
	void copy_address_from(const Endpoint *other)
	{
		port = other->port;
		copy_ip(other->ip ? other->ip : "");
	}

	/* Shares the address, which must live as long, and copies the port. */
	void share_address_from(const Endpoint *other)
	{
		port = other->port;
		ip = other->ip;
	}

	void set_port(int to)
	{
		port = static_cast<decltype(blkin_endpoint::port)>(to);
	}

private:
	void take(const Endpoint &other)
	{
		if (other.ip == other.own_ip.c_str())
			copy_ip(other.own_ip);
		if (other.name == other.own_name.c_str())
			copy_name(other.own_name);
	}
};

/* A span. A child of an invalid trace is invalid. */
class Trace : private blkin_trace {
	std::string own_name;

public:
	Trace()
	{
		clear();
	}

	Trace(const char *name, const Endpoint *endpoint, const Trace *parent = nullptr)
	{
		clear();
		init(name, endpoint, parent);
	}

	Trace(const std::string &name, const Endpoint *endpoint, const Trace *parent = nullptr)
	{
		clear();
		init(name.c_str(), endpoint, parent);
		copy_name(name);
	}

	Trace(const char *name, const Endpoint *endpoint, const blkin_trace_info *info, bool child = false)
	{
		clear();
		init(name, endpoint, info, child);
	}

	Trace(const std::string &name, const Endpoint *endpoint, const blkin_trace_info *info, bool child = false)
	{
		clear();
		init(name.c_str(), endpoint, info, child);
		copy_name(name);
	}

	Trace(const Trace &other) : blkin_trace(other)
	{
		take(other);
	}

	Trace &operator=(const Trace &other)
	{
		if (this != &other) {
			static_cast<blkin_trace &>(*this) = other;
			take(other);
		}
		return *this;
	}

	/* Returns whether it emits events. */
	bool valid() const
	{
		return info.trace_id != 0;
	}

	explicit operator bool() const
	{
		return valid();
	}

	/* Begins a trace, or a child of `parent` if that one has begun. */
	int init(const char *name, const Endpoint *endpoint, const Trace *parent = nullptr)
	{
		if (parent && parent->blkin_trace::name)
			return blkin_init_child(this, parent, endpoint, name);
		return blkin_init_new_trace(this, name, endpoint);
	}

	/* Makes the span that `info` names, or a child of it. */
	int init(const char *name, const Endpoint *endpoint, const blkin_trace_info *info, bool child = false)
	{
		if (child)
			return blkin_init_child_info(this, info, endpoint, name);
		return blkin_set_trace_properties(this, info, name, endpoint);
	}

	void copy_name(const std::string &from)
	{
		own_name = from;
		name = own_name.c_str();
	}

	const blkin_trace_info *get_info() const
	{
		return &info;
	}

	void set_info(const blkin_trace_info *to)
	{
		blkin_set_trace_info(this, to);
	}

	/* Annotations. Without an endpoint they have that of the trace. */
	void keyval(const char *key, const char *val) const
	{
		BLKIN_KEYVAL_STRING(this, nullptr, key, val)
	}

	void keyval(const char *key, const std::string &val) const
	{
		BLKIN_KEYVAL_STRING(this, nullptr, key, val.c_str())
	}

	/*
	 * Accepts every integer type: with int64_t alone, a literal 0 would be ambiguous with a
	 * null string.
	 */
	template <typename Integer, typename std::enable_if<std::is_integral<Integer>::value, int>::type = 0>
	void keyval(const char *key, Integer val) const
	{
		BLKIN_KEYVAL_INTEGER(this, nullptr, key, static_cast<int64_t>(val))
	}

	void keyval(const char *key, const char *val, const Endpoint *endpoint) const
	{
		BLKIN_KEYVAL_STRING(this, endpoint, key, val)
	}

	void keyval(const char *key, const std::string &val, const Endpoint *endpoint) const
	{
		BLKIN_KEYVAL_STRING(this, endpoint, key, val.c_str())
	}

	template <typename Integer, typename std::enable_if<std::is_integral<Integer>::value, int>::type = 0>
	void keyval(const char *key, Integer val, const Endpoint *endpoint) const
	{
		BLKIN_KEYVAL_INTEGER(this, endpoint, key, static_cast<int64_t>(val))
	}

	void event(const char *event) const
	{
		BLKIN_TIMESTAMP(this, nullptr, event)
	}

	void event(const char *event, const Endpoint *endpoint) const
	{
		BLKIN_TIMESTAMP(this, endpoint, event)
	}

private:
	void clear()
	{
		static_cast<blkin_trace &>(*this) = blkin_trace();
	}

	void take(const Trace &other)
	{
		if (other.name == other.own_name.c_str())
			copy_name(other.own_name);
	}
};

#ifdef BLKIN_FIRST_GENERATION
typedef Endpoint ZTraceEndpoint;
typedef Trace ZTrace;
#endif

}

#endif
