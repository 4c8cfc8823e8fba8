/*
 * Calls every function of blkin's C++ wrapper, and prints the events that a reader of the trace
 * must find, as blkin.c.
 */
#include <ztracer.hpp>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>

#ifdef BLKIN_FIRST_GENERATION
#define STRING_EVENT "zipkin:keyval"
typedef ZTracer::ZTrace Trace;
typedef ZTracer::ZTraceEndpoint Endpoint;
#else
#define STRING_EVENT "zipkin:keyval_string"
using ZTracer::Endpoint;
using ZTracer::Trace;
#endif

#define CHECK(condition)								\
	do {										\
		if (!(condition)) {							\
			std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);	\
			std::exit(1);							\
		}									\
	} while (0)

static void expect(const char *event, const char *name, const char *service, int port, const char *ip, const Trace &trace,
		   const char *rest)
{
	const blkin_trace_info *info = trace.get_info();

	std::printf("%s { trace_name = \"%s\", service_name = \"%s\", port_no = %d, ip = \"%s\", trace_id = %" PRId64
		    ", span_id = %" PRId64 ", parent_span_id = %" PRId64 ", %s }\n",
		    event, name, service, port, ip, info->trace_id, info->span_id, info->parent_span_id, rest);
}

int main()
{
	CHECK(ZTracer::ztrace_init() == 0);
	Endpoint bare("client");
	std::unique_ptr<Endpoint> gone(new Endpoint(std::string("10.1.1.1"), 80, std::string("gone")));
	Endpoint full("10.1.1.2", 6789, "mon");
	Endpoint copied(*gone), assigned("x");

	assigned = *gone;
	gone.reset();

	Trace nothing;
	CHECK(!nothing.valid() && !nothing);
	nothing.event("emits nothing");
	nothing.keyval("emits", "nothing");

	Trace root("op", &bare);
	CHECK(root.valid() && root.get_info()->parent_span_id == 0);
	root.event(CLIENT_SEND);
	expect("zipkin:timestamp", "op", "client", 0, "", root, "event = \"cs\"");
	root.event("elsewhere", &full);
	expect("zipkin:timestamp", "op", "mon", 6789, "10.1.1.2", root, "event = \"elsewhere\"");
	root.keyval("pool", "rbd");
	expect(STRING_EVENT, "op", "client", 0, "", root, "key = \"pool\", val = \"rbd\"");
	root.keyval("pool", std::string("ssd"), &full);
	expect(STRING_EVENT, "op", "mon", 6789, "10.1.1.2", root, "key = \"pool\", val = \"ssd\"");
	root.keyval("zero", 0);
	expect("zipkin:keyval_integer", "op", "client", 0, "", root, "key = \"zero\", val = 0");
	root.keyval("length", static_cast<int64_t>(1) << 40, &full);
	expect("zipkin:keyval_integer", "op", "mon", 6789, "10.1.1.2", root, "key = \"length\", val = 1099511627776");

	{
		/* Parts of the parent outlive it only if they were copied. */
		std::string name("child");
		Trace child(name, &copied, &root);
		Trace same(child);
		name = "other";
		CHECK(child.get_info()->parent_span_id == root.get_info()->span_id);
		CHECK(child.get_info()->trace_id == root.get_info()->trace_id);
		child.event("began");
		expect("zipkin:timestamp", "child", "gone", 80, "10.1.1.1", child, "event = \"began\"");
		child.copy_name("renamed");
		child.event("went on");
		expect("zipkin:timestamp", "renamed", "gone", 80, "10.1.1.1", child, "event = \"went on\"");
		same.event("copied");
		expect("zipkin:timestamp", "child", "gone", 80, "10.1.1.1", same, "event = \"copied\"");
		nothing = same;
	}
	nothing.event("assigned");
	expect("zipkin:timestamp", "child", "gone", 80, "10.1.1.1", nothing, "event = \"assigned\"");

	assigned.set_port(443);
	assigned.copy_name("tls");
	Trace child_of_info("below", &assigned, root.get_info(), true);
	CHECK(child_of_info.get_info()->parent_span_id == root.get_info()->span_id);
	child_of_info.event("a");
	expect("zipkin:timestamp", "below", "tls", 443, "10.1.1.1", child_of_info, "event = \"a\"");
	Trace again("again", &assigned, root.get_info());
	CHECK(again.get_info()->span_id == root.get_info()->span_id);
	assigned.share_address_from(&full);
	again.event("b");
	expect("zipkin:timestamp", "again", "tls", 6789, "10.1.1.2", again, "event = \"b\"");
	assigned.copy_ip("::1");
	assigned.set_port(1);
	again.event("c");
	expect("zipkin:timestamp", "again", "tls", 1, "::1", again, "event = \"c\"");
	assigned.copy_address_from(&full);
	again.set_info(child_of_info.get_info());
	again.event("d");
	expect("zipkin:timestamp", "again", "tls", 6789, "10.1.1.2", again, "event = \"d\"");

	Trace late;
	CHECK(late.init("late", &full) == 0 && late.valid());
	late.event("e");
	expect("zipkin:timestamp", "late", "mon", 6789, "10.1.1.2", late, "event = \"e\"");
	CHECK(late.init("later", &full, &root) == 0);
	CHECK(late.get_info()->parent_span_id == root.get_info()->span_id);
	late.event("f");
	expect("zipkin:timestamp", "later", "mon", 6789, "10.1.1.2", late, "event = \"f\"");
	CHECK(late.init("last", &full, child_of_info.get_info(), true) == 0);
	CHECK(late.get_info()->parent_span_id == child_of_info.get_info()->span_id);
	late.event("g");
	expect("zipkin:timestamp", "last", "mon", 6789, "10.1.1.2", late, "event = \"g\"");
	return 0;
}
