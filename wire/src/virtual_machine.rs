//! Virtual machines: the name and UUID of the virtual machine that a process runs.
//!
//! *In*: the command line of a QEMU process, which the tracer reads when it first sees the process
//! (`tracer/src/enrich/virtual_machines.rs`). *Out*: one event for each such process. *Invariant*: it
//! applies to the process from the event's time until the process executes another program or ends.
//!
//! An event of process 0 is of the node itself: all that it traces runs in this virtual machine. Only the host
//! knows that for certain, so the host's agent adds it to each record of a guest
//! (`blkkin/src/services/agent/guests.rs`), and no guest may send one.
//!
//! *Why not in [`ProcessContextEvent`](crate::process_context::ProcessContextEvent)*: that is what a process
//! publishes about itself, and it can withdraw it. A program can do both.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::MonotonicNs;
use crate::ids::Pid;

/// Virtual machine that a process runs from `time` on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualMachineEvent {
    /// Time of the task event that reported the process's program.
    pub time: MonotonicNs,
    /// Process, or [`VirtualMachineEvent::NODE`].
    pub pid: Pid,
    /// Name that it was started with; libvirt's name of the domain. Empty if there is none.
    pub name: Arc<str>,
    /// UUID that it was started with. Empty if there is none.
    pub uuid: Arc<str>,
}

impl VirtualMachineEvent {
    /// Process id of an event of the node itself.
    pub const NODE: Pid = Pid(0);

    /// Returns whether the event is of the node, and not of one of its processes.
    pub fn is_of_node(&self) -> bool {
        self.pid == Self::NODE
    }

    /// Returns the name or, if there is none, the UUID.
    pub fn shown_name(&self) -> &str {
        if self.name.is_empty() { &self.uuid } else { &self.name }
    }
}
