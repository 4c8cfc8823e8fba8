//! Virtual machines: what a process of QEMU runs, and the node that a virtual machine is.
//!
//! *In*: the command line and the open files of a QEMU process, which the tracer reads when it first sees the
//! process, and again while it runs (`tracer/src/enrich/virtual_machines.rs`). *Out*: an event for each such
//! process, and another when its disks have changed. *Invariant*: it applies to the process from the event's
//! time until the next one, or until the process executes another program or ends.
//!
//! An event of process 0 is of the node itself: all that it traces runs in this virtual machine. Only the host
//! knows that for certain, so the host's agent adds it to each record of a guest
//! (`blkkin/src/guests.rs`), and no guest may send one.
//!
//! *Why not in [`ProcessContextEvent`](crate::process_context::ProcessContextEvent)*: that is what a process
//! publishes about itself, and it can withdraw it. A program can do both.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::{ClockOffset, MonotonicNs};
use crate::ids::{BootId, DeviceId, NodeId, Pid};

/// Virtual machine that a process runs from `time` on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualMachineEvent {
    /// Time of the task event that reported the process's program, or when the disks were read.
    pub time: MonotonicNs,
    /// Process, or [`VirtualMachineEvent::NODE`].
    pub pid: Pid,
    /// Name that it was started with; libvirt's name of the domain. Empty if there is none.
    pub name: Arc<str>,
    /// UUID that it was started with. Empty if there is none.
    pub uuid: Arc<str>,
    /// Disks with images that the process has open. Empty for the node itself.
    pub disks: Vec<MachineDisk>,
    /// Disks that an NBD server has, once for each connection to it. Empty for the node itself.
    pub nbd_disks: Vec<NbdDisk>,
    /// For the node itself: its process on the host, if the host's agent knows it.
    pub host: Option<Box<HostProcess>>,
}

/// Disk of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineDisk {
    /// Name that guest and host have for it: see [`DeviceEvent::disk`](crate::event::DeviceEvent::disk).
    pub disk: Box<str>,
    /// Device of the image's file system, or the block device that is the image.
    pub device: DeviceId,
    /// Inode of the image. None if the image is the block device.
    pub ino: Option<u64>,
    /// True if the image has clusters of 64 KiB or more in an order of its own (qcow2). Otherwise the guest's bytes are
    /// at the guest's offsets.
    pub in_clusters: bool,
    /// 0 for the image that the guest writes, 1 for its backing file, 2 for the backing file of that one.
    pub layer: u32,
}

/// Disk of a virtual machine that QEMU reads and writes over NBD, with the guest's bytes at the guest's offsets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NbdDisk {
    /// Name that guest and host have for it, as in [`MachineDisk::disk`].
    pub disk: Box<str>,
    /// Name of the connection ([`RpcKey::connection`](crate::remote_link::RpcKey::connection)).
    pub connection: Box<str>,
}

/// Process that runs the node's virtual machine, on its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProcess {
    /// Host.
    pub node: NodeId,
    /// Boot of the host.
    pub boot: BootId,
    /// Process id on the host.
    pub pid: Pid,
    /// Host's clock minus the guest's; none before the guest has answered a ping.
    pub clock: Option<ClockOffset>,
}

impl VirtualMachineEvent {
    /// Process id of an event of the node itself.
    pub const NODE: Pid = Pid(0);

    /// Creates an event without disks and host.
    pub fn bare(time: MonotonicNs, pid: Pid, name: &str, uuid: &str) -> Self {
        let (name, uuid) = (name.into(), uuid.into());
        VirtualMachineEvent { time, pid, name, uuid, disks: Vec::new(), nbd_disks: Vec::new(), host: None }
    }

    /// Returns whether the event is of the node, and not of one of its processes.
    pub fn is_of_node(&self) -> bool {
        self.pid == Self::NODE
    }

    /// Returns the name or, if there is none, the UUID.
    pub fn shown_name(&self) -> &str {
        if self.name.is_empty() { &self.uuid } else { &self.name }
    }
}
