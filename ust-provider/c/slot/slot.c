/*
 * Slot of OpenTelemetry's thread context (OTEP 4947): for each thread a pointer to the record of
 * its current span. It is a shared object that programs embed and load (`src/thread_context.rs` has
 * the reason).
 *
 * In: the address of a record, or NULL, from the thread itself. Out: the symbol in this object's
 * dynamic symbols, where readers of other processes find it.
 *
 * It has only 8 bytes per thread. glibc therefore places it near the thread pointer even if threads
 * are running already (its surplus of static thread-local storage, elf/dl-tls.c), and a reader
 * finds it without the thread's vector of modules.
 */

/*
 * The name and the soname are a contract between copies of this library in one process: all use the
 * first one that is loaded.
 */
__attribute__((visibility("default"))) __thread void *otel_thread_ctx_v1;

__attribute__((visibility("default"))) void **blkkin_thread_slot(void)
{
	return &otel_thread_ctx_v1;
}
