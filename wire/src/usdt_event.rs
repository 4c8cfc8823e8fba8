//! USDT events.
//!
//! *In*: executions of the probes that a mapping file names (`tracer/src/enrich/usdt/`). *Out*: span events of
//! daemons (`ust-bridge/src/mapping/usdt_mapping.rs`). *Invariant*: an event stays on its node: the wire format
//! has none.

use crate::clock::MonotonicNs;
use crate::ids::{Pid, Tid};

/// Execution of a probe by a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtEvent {
    /// Time of the event.
    pub time: MonotonicNs,
    /// Index of the requested probe.
    pub probe: usize,
    /// Process, in the initial pid namespace.
    pub pid: Pid,
    /// Thread, in the initial pid namespace.
    pub tid: Tid,
    /// Name of the thread.
    pub comm: Box<str>,
    /// Arguments; none for one that could not be read.
    pub arguments: Vec<Option<i128>>,
    /// Requested text; none if it could not be read. A truncated text ends with `…`.
    pub text: Option<Box<str>>,
}
