//! Virtual machine events: rare, so rows. They are stored outside of `kinds` with the number of all
//! events that precede them, so an older reader skips the field and misreads nothing.

use std::iter::Peekable;
use std::slice::Iter;

use prost::Message as _;

use super::message::{
    BackingFile, ClockOffset as OffsetMessage, EventBatch, HostProcess as HostMessage,
    MachineDisk as DiskMessage, NbdDisk as NbdDiskMessage, VirtualMachineEvent as Message,
};
use super::{Malformed, frame};
use crate::clock::{ClockOffset, MonotonicNs};
use crate::event::LayerEvent;
use crate::ids::{DeviceId, Pid};
use crate::virtual_machine::{HostProcess, MachineDisk, NbdDisk, VirtualMachineEvent};

/// Encodes an event that follows `before` other events.
pub(super) fn write(event: &VirtualMachineEvent, before: usize) -> Message {
    let of_kind = |in_clusters: bool| {
        let disks = event.disks.iter().filter(move |disk| disk.layer == 0 && disk.in_clusters == in_clusters);
        disks.map(write_disk).collect()
    };
    Message {
        before: before as u32,
        time: event.time.0,
        pid: event.pid.0,
        name: event.name.to_string(),
        uuid: event.uuid.to_string(),
        disks: of_kind(false),
        cluster_disks: of_kind(true),
        backing_files: event.disks.iter().filter(|disk| disk.layer > 0).map(write_backing_file).collect(),
        nbd_disks: event.nbd_disks.iter().map(write_nbd_disk).collect(),
        host: event.host.as_deref().map(write_host),
    }
}

fn write_disk(disk: &MachineDisk) -> DiskMessage {
    DiskMessage { disk: disk.disk.to_string(), device: disk.device.to_kernel(), ino: disk.ino }
}

fn write_backing_file(disk: &MachineDisk) -> BackingFile {
    BackingFile { image: write_disk(disk), layer: disk.layer, in_clusters: disk.in_clusters }
}

fn read_disk(disk: &DiskMessage, layer: u32, in_clusters: bool) -> MachineDisk {
    MachineDisk {
        disk: disk.disk.as_str().into(),
        device: DeviceId::from_kernel(disk.device),
        ino: disk.ino,
        in_clusters,
        layer,
    }
}

fn write_nbd_disk(disk: &NbdDisk) -> NbdDiskMessage {
    NbdDiskMessage { disk: disk.disk.to_string(), connection: disk.connection.to_string() }
}

fn read_nbd_disk(disk: &NbdDiskMessage) -> NbdDisk {
    NbdDisk { disk: disk.disk.as_str().into(), connection: disk.connection.as_str().into() }
}

fn write_host(host: &HostProcess) -> HostMessage {
    HostMessage {
        node: host.node.0.to_be_bytes().to_vec(),
        boot: host.boot.0.to_be_bytes().to_vec(),
        pid: host.pid.0,
        clock: host.clock.as_ref().map(write_offset),
    }
}

pub(super) fn write_offset(offset: &ClockOffset) -> OffsetMessage {
    OffsetMessage { at: offset.at.0, low: offset.low, high: offset.high }
}

pub(super) fn read_offset(offset: &OffsetMessage) -> ClockOffset {
    ClockOffset { at: MonotonicNs(offset.at), low: offset.low, high: offset.high }
}

fn read_host(host: &HostMessage) -> Result<HostProcess, Malformed> {
    let names = ["HostProcess.node", "HostProcess.boot"];
    let source = frame::source_of(&host.node, &host.boot, 0, names)?;
    let clock = host.clock.as_ref().map(read_offset);
    Ok(HostProcess { node: source.node, boot: source.boot, pid: Pid(host.pid), clock })
}

/// Adds an event behind the last one of an encoded batch, without decoding it. Protobuf merges messages that
/// follow each other, and appends the rows of the second one.
pub fn append_virtual_machine(record: &mut Vec<u8>, event: &VirtualMachineEvent) {
    let rows = vec![write(event, u32::MAX as usize)];
    let last = EventBatch { virtual_machine_events: rows, ..EventBatch::default() };
    record.extend(last.encode_to_vec());
}

/// Reader of virtual machine rows, in order.
pub(super) struct VirtualMachineReader<'a> {
    rows: Peekable<Iter<'a, Message>>,
}

impl<'a> VirtualMachineReader<'a> {
    pub(super) fn new(rows: &'a [Message]) -> Self {
        VirtualMachineReader { rows: rows.iter().peekable() }
    }

    /// Appends the next event if it follows the first `before` events or fewer. A position beyond the
    /// last event is no error, as for page faults.
    pub(super) fn next_if_due(
        &mut self,
        before: usize,
        events: &mut Vec<LayerEvent>,
    ) -> Result<bool, Malformed> {
        let Some(row) = self.rows.next_if(|row| row.before as usize <= before) else { return Ok(false) };
        let disks = row.disks.iter().map(|disk| read_disk(disk, 0, false));
        let cluster_disks = row.cluster_disks.iter().map(|disk| read_disk(disk, 0, true));
        // Layer 0 here would be a second image for the guest's writes.
        let backing_files = row.backing_files.iter().filter(|file| file.layer > 0);
        let backing_files = backing_files.map(|file| read_disk(&file.image, file.layer, file.in_clusters));
        let event = VirtualMachineEvent {
            time: MonotonicNs(row.time),
            pid: Pid(row.pid),
            name: row.name.as_str().into(),
            uuid: row.uuid.as_str().into(),
            disks: disks.chain(cluster_disks).chain(backing_files).collect(),
            nbd_disks: row.nbd_disks.iter().map(read_nbd_disk).collect(),
            host: row.host.as_ref().map(read_host).transpose()?.map(Box::new),
        };
        events.push(LayerEvent::VirtualMachine(event.into()));
        Ok(true)
    }
}
