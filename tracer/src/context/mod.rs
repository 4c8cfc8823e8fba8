//! Finds where processes say which span of their own each of their threads works for, and tells the kernel side.
//!
//! *In*: processes that are seen, execute a program, map a library ([`watch`], from the tracer's own events). *Out*: a
//! [`Place`](blkkin_probe_abi::context::Place) for each process that publishes OpenTelemetry's thread context (OTEP 4947).
//!
//! The way: [`process`] says what a process has mapped ([`maps`]) and reads its memory; [`elf`] finds the symbol
//! `otel_thread_ctx_v1` in what is loaded there; [`tls`] says where a thread finds that variable; [`finder`] does this in a thread
//! of its own, of those that are [`believed`], and writes what is new into [`places`]. [`reach`](mod@reach) says of whom all this may be asked at all.
//!
//! Who a process is in its own words (OpenTelemetry's process context, OTEP 4719) is found by the same looks: [`maps`] says where,
//! [`published`] reads it whole or not at all, [`resource`] is where its bytes become attributes, and [`resources`] says them once, and
//! again when they are others. What threads say of their work besides spans comes with each call's record; [`attributes`] is where those bytes
//! become values, by numbers for which [`resource`] has the names.
//!
//! *Invariant*: all of it is the process's word, and believed only as far as a wrong word harms nobody: each read is bounded and
//! may fail, what does not fit is no place, and what is read at the place is looked at again at each call. A process cannot stop
//! the tracer: the thread that looks drains no ring.
//!
//! *When*. A place must be known before the first call that is to be below a span. A program's own variable is there from its
//! execve on, a library's once it is mapped and relocated: so it is looked at execve, and behind each mmap of a file that may be
//! executed, which the tracer sees anyway (dlopen is nothing else to the kernel). What is mapped and not relocated yet is looked
//! at again, some ms later. *Rejected*: looking again when a read fails (nothing is read before a place is known); a probe in user
//! space at the loader (`_dl_debug_state`: costs each dlopen of the machine two traps, and musl has another).
//!
//! *Rejected*: the files behind the mappings, by /proc/PID/map_files. All that is needed is loaded, and memory is there where the
//! file is not: deleted, a memfd, in a container's or a network's file system. And there is one way to read instead of two.
//!
//! *Weakness*: a page of a file that a process has mapped from a file system which does not answer (FUSE, NFS) keeps the thread
//! that looks waiting; calls are below no span from then on, and nothing else stands still.

pub(crate) mod attributes;
pub(crate) mod barren;
pub(crate) mod believed;
pub(crate) mod elf;
pub(crate) mod finder;
#[cfg(test)]
mod loaders;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod places;
pub(crate) mod process;
pub(crate) mod published;
pub(crate) mod reach;
pub(crate) mod resource;
pub(crate) mod resources;
pub(crate) mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
pub(crate) mod watch;

/// The variable's name: a pointer to the current context's record, one in each thread.
pub(crate) const VARIABLE: &[u8] = b"otel_thread_ctx_v1";

/// Its size.
pub(crate) const VARIABLE_BYTES: u64 = 8;
