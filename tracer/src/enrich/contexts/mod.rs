//! OpenTelemetry contexts of traced processes: finds thread contexts and process contexts, and
//! passes them to the kernel side and into the events.
//!
//! *In*: processes that are observed, execute a program or map a library ([`process_events`], from
//! the tracer's own events). *Out*: a TLS slot for each process that publishes thread contexts
//! (OTEP 4947), in the kernel side's map ([`tls_slots`]); and an event for each process context
//! (OTEP 4719) and each change of it ([`process_contexts`]). The kernel side reads thread contexts
//! through the slots, and each system call's record carries them.
//!
//! The crate `blkkin-otel-context` reads processes. [`scanner`] decides when, in a thread of its
//! own, and only for processes that the [`policy`] accepts. [`ptrace_access`](mod@ptrace_access)
//! checks which processes this one may read.
//!
//! *Invariant*: published data are untrusted, and wrong data harm only the process that published
//! them. The kernel side validates a slot's contents at each call. A process cannot stop the
//! tracer: the scanner thread does not read rings.
//!
//! *When*: a slot must be known before the first call under a span. A program's own variable exists
//! from its execve on, a library's once it is mapped and relocated. So processes are scanned at
//! execve, and after each mmap of an executable file, which the tracer observes anyway (dlopen is
//! nothing else to the kernel). Libraries that are not relocated yet are scanned again some ms
//! later. *Rejected*: a scan after a failed read (nothing is read before a slot is known); a uprobe
//! in the loader (`_dl_debug_state`: it costs each dlopen of the machine two traps, and musl has a
//! different one).
//!
//! *Weakness*: a page mapped from a file system that does not respond (FUSE, NFS) blocks the
//! scanner thread. Later calls then have no span, and everything else continues.

pub(crate) mod config;
pub(crate) mod policy;
pub(crate) mod process_contexts;
pub(crate) mod process_events;
pub(crate) mod ptrace_access;
pub(crate) mod scan_stats;
pub(crate) mod scanner;
pub(crate) mod tls_slots;
