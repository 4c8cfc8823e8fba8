//! Tracer of one node: loads and attaches the eBPF programs, reads their rings, and publishes
//! events.
//!
//! *In*: records from the rings ([`blkkin_probe_abi::record`]). *Out*:
//! [`EventBatch`](blkkin_wire::batch::EventBatch)es in time order, each with a watermark and the
//! source's counters.
//!
//! In the order of the flow:
//!
//! - [`config`]: tasks to trace, and data to record.
//! - [`attach`]: [`attach::probes`] defines the probes, [`attach::layout`] resolves the kernel's
//!   field offsets, and [`attach::kernel`] checks the kernel's requirements.
//! - [`read`]: [`read::rings`] merges the rings, [`read::decode`] validates records, and
//!   [`read::translate`] turns them into events and is the only module that knows both types.
//! - [`enrich`]: [`enrich::tasks`] marks traced tasks, [`enrich::devices`] names block devices,
//!   [`enrich::nbd`] builds NBD client spans, [`enrich::usdt`] records USDT events, and
//!   `enrich::contexts` finds OpenTelemetry contexts.
//! - [`selection`]: which operations are recorded. `head_sampling` has the share of the roots, [`selection::keep`] the
//!   rules for the others, [`selection::budget`] the time that tracing takes and the ratio that keeps it within a budget,
//!   and [`selection::path_filter`] excludes system calls by the paths of their files. [`capture`] changes these settings
//!   while the trace runs.
//! - [`stats`]: counters, and what remains of them after a crash.
//! - [`mod@load`] loads and attaches the programs, and [`mod@reader_loop`] reads their rings until it
//!   is stopped.
//! - [`totals`]: counts block requests in the kernel instead of recording them.
//! - [`mod@doctor`]: tests each probe under each attach kind.
//!
//! *Invariant*: nothing active outlives the process. Links, programs and rings are held only by
//! file descriptors, so even kill -9 leaves nothing attached. Only counters may outlive it
//! ([`stats::persistent_counters`], [`stats::progress_map`]), if the caller keeps them.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod config;

pub mod attach;

pub mod read;

pub mod enrich;

pub mod stats;

pub mod capture;
pub mod selection;

pub mod load;
pub mod reader_loop;

pub mod totals;

pub mod doctor;

mod aya_error;
pub mod clock;
pub mod error;
pub mod heap;
pub mod identity;
mod privilege;
mod stop_signal;

pub use attach::probes::{AttachKind, ProbeReport, ProbeStatus};
pub use config::{Detail, Filter, TraceScope, TracerConfig};
pub use doctor::{DoctorReport, doctor};
pub use enrich::contexts::policy::{ContextPolicy, ProcessMatcher};
pub use enrich::contexts::ptrace_access::{PtraceAccess, ptrace_access};
pub use error::TracerError;
pub use load::Tracer;
pub use reader_loop::{TraceSummary, raise_priority};
pub use selection::path_filter::pattern::{PathPattern, PatternError, name_matches};
pub use stats::persistent_counters::{
    CounterHandles, CrashedRunStats, OrphanedCounters, PinDir, PinnedCounters,
};
pub use stats::progress_map::ProgressMap;
pub use stop_signal::StopSignal;
