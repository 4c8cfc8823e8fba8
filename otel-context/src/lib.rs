//! Finds and reads the OpenTelemetry contexts that other processes publish in their memory.
//!
//! - *Thread contexts* (OTEP 4947): the span that each thread works for. A process publishes them
//!   in the thread-local variable `otel_thread_ctx_v1`.
//! - *Process contexts* (OTEP 4719): the resource of a process, such as `service.name`. A process
//!   publishes one in a mapping named `OTEL_CTX`.
//!
//! *In*: a pid. *Out*: [`scan()`] returns the location of the thread contexts and the addresses of
//! process contexts. [`TlsLocation::address`] computes the address of a thread's slot from its
//! thread pointer, and [`thread_context::read`] reads the context there. [`process_context::read`]
//! and [`resource::decode`] read and decode a process context.
//!
//! ```
//! use blkkin_otel_context::{NegativeCache, ProcessMemory, process_context, resource, scan};
//!
//! let pid = std::process::id();
//! let found = scan(pid, &mut NegativeCache::new()).expect("own memory is accessible");
//! println!("thread contexts: {:?}", found.slot);
//! for address in found.process_contexts {
//!     if let Ok(context) = process_context::read(&ProcessMemory(pid), address) {
//!         println!("process context: {:?}", resource::decode(&context.payload));
//!     }
//! }
//! ```
//!
//! *Invariant*: all input is untrusted, since any process can write its own memory. Every read is
//! bounded and may fail, and inconsistent data yield nothing. A library that is unmapped during a
//! scan may be gone or replaced: callers that keep a slot must handle the munmap of its library.
//!
//! *Access*: reading needs ptrace access to the process: the same user, or CAP_SYS_PTRACE.
//!
//! *Limits*: x86-64 and aarch64 processes with glibc or musl; statically linked programs must
//! export the variable in their dynamic symbol table.
//!
//! *Rejected*: the files behind the mappings, through /proc/PID/map_files. Everything needed is
//! loaded, and memory is accessible where the file is not: deleted, a memfd, in a container's or a
//! network file system. *Rejected*: the `object` crate, which needs section headers and whole
//! files.
//!
//! *Weakness*: a page mapped from a file system that does not respond (FUSE, NFS) blocks the
//! reading thread.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod maps;
mod memory;

mod elf;
mod tls;

mod negative_cache;
mod scan;

pub mod thread_attributes;
pub mod thread_context;

pub mod process_context;
pub mod resource;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod loaders;
#[cfg(test)]
mod tests;

pub use maps::MappedFile;
pub use memory::{Memory, ProcessMemory};
pub use negative_cache::NegativeCache;
pub use process_context::ProcessContext;
pub use resource::Resource;
pub use scan::{AddressSpace, ScanError, ScanResult, SlotLookup, address_space, scan};
pub use thread_context::ThreadContext;
pub use tls::{ThreadContextSlot, TlsLocation};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Name of the variable, a pointer to the thread's current record.
const VARIABLE: &[u8] = b"otel_thread_ctx_v1";

/// Size of the variable.
const VARIABLE_BYTES: u64 = 8;
