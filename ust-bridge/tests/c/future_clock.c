/* Clock plugin of LTTng-UST: CLOCK_MONOTONIC an hour ahead.
 * The session daemon does not load it, so the metadata declare CLOCK_MONOTONIC. */
#include <lttng/ust-clock.h>
#include <time.h>

void lttng_ust_clock_plugin_init(void);

static uint64_t read64(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return ((uint64_t)now.tv_sec + 3600) * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static uint64_t frequency(void)
{
	return 1000000000ULL;
}

static const char *name(void)
{
	return "monotonic";
}

static int uuid(char *text)
{
	(void)text;
	return -1;
}

void lttng_ust_clock_plugin_init(void)
{
	/* Each callback is required. A later call, from another library of LTTng, changes nothing. */
	lttng_ust_trace_clock_set_read64_cb(read64);
	lttng_ust_trace_clock_set_freq_cb(frequency);
	lttng_ust_trace_clock_set_name_cb(name);
	lttng_ust_trace_clock_set_description_cb(name);
	lttng_ust_trace_clock_set_uuid_cb(uuid);
	lttng_ust_enable_trace_clock_override();
}
