/* The slot. In the program itself, or in a library. */
#include "thread.h"

__attribute__((visibility("default"))) __thread struct record *otel_thread_ctx_v1;

struct record **slot(void)
{
	return &otel_thread_ctx_v1;
}
