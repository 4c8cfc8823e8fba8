/* OpenTelemetry thread context (OTEP 4947): the variable, and a function that sets it in the calling thread. */
__attribute__((visibility("default"))) __thread const void *otel_thread_ctx_v1;

__attribute__((visibility("default"))) void publish(const void *record)
{
	otel_thread_ctx_v1 = record;
}
