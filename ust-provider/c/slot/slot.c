/*
 * The slot of OpenTelemetry's thread context (OTEP 4947): of each thread a pointer to the record of the span that it works for. A
 * shared object of its own, which programs embed and load (`src/publish.rs` says why). In: the address of a record, or NULL, from the
 * thread itself; out: the symbol, in this object's dynamic symbols, where readers of other processes look for it.
 *
 * 8 bytes for each thread and no more: glibc then finds room for it beside the thread pointer also where threads run already (its
 * surplus of static thread-local storage, elf/dl-tls.c), and a reader finds it without the thread's vector of modules.
 */

/* The name and the soname are a contract between copies of us in one process: the first one that is loaded counts for all. */
__attribute__((visibility("default"))) __thread void *otel_thread_ctx_v1;

__attribute__((visibility("default"))) void **blkkin_thread_slot(void)
{
	return &otel_thread_ctx_v1;
}
