//! Decoder of event batches. It trusts no byte and checks each value.

use prost::Message;

use super::async_io::AsyncIoReader;
use super::block::BlockReader;
use super::column::{Column, Delta};
use super::commit::CommitReader;
use super::crash_report;
use super::daemon_span::DaemonSpanReader;
use super::decode_tables::DecodeTables;
use super::message::{self, Kind};
use super::name::NameReader;
use super::page_fault::FaultReader;
use super::page_origin::PageOriginReader;
use super::process_context::ProcessContextReader;
use super::rpc_endpoint::RpcEndpointReader;
use super::syscall::SyscallReader;
use super::virtual_machine::VirtualMachineReader;
use super::{Malformed, VERSION, frame};
use crate::batch::EventBatch;
use crate::clock::MonotonicNs;
use crate::event::LayerEvent;

/// Decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Batch.
    pub batch: EventBatch,
    /// Number of system calls skipped because this version's table lacks them: a newer tracer wrote
    /// them.
    pub calls_unknown: u64,
}

/// Decodes a record of `blkkin.events`.
pub fn decode(bytes: &[u8]) -> Result<Decoded, Malformed> {
    let message =
        message::EventBatch::decode(bytes).map_err(|error| Malformed::Protobuf(error.to_string()))?;
    if message.version != VERSION {
        return Err(Malformed::Version(message.version));
    }
    let tables = DecodeTables::of(&message)?;
    let (events, calls_unknown) = events(&message, &tables)?;
    let batch = EventBatch {
        source: frame::read_source(&message.node, &message.boot, message.epoch)?,
        sequence: message.sequence,
        anchor: frame::read_anchor(&message.anchor),
        events,
        watermark: MonotonicNs(message.watermark),
        stats: frame::read_stats(&message.stats),
        crashed_runs: message.crashed_runs.iter().map(crash_report::read).collect(),
    };
    Ok(Decoded { batch, calls_unknown })
}

fn events(
    message: &message::EventBatch,
    tables: &DecodeTables<'_>,
) -> Result<(Vec<LayerEvent>, u64), Malformed> {
    let mut calls = SyscallReader::new(&message.syscall_events);
    let mut blocks = BlockReader::new(&message.bio_events, &message.request_events);
    let mut commits = CommitReader::new(&message.commit_events);
    let mut names = NameReader::new(&message.task_events, &message.file_events, &message.device_events);
    let none = message::RpcEndpointEvents::default();
    let mut endpoints = RpcEndpointReader::new(message.rpc_endpoint_events.as_ref().unwrap_or(&none));
    let none = message::DaemonSpanEvents::default();
    let mut daemon_spans = DaemonSpanReader::new(message.daemon_span_events.as_ref().unwrap_or(&none));
    let (mut times, mut last) = (Column::new(&message.times, "EventBatch.times"), Delta::default());
    let (mut events, mut calls_unknown) = (Vec::new(), 0);
    let none = message::PageOriginEvents::default();
    let origins = PageOriginReader::new(message.page_origin_events.as_ref().unwrap_or(&none));
    let none = message::AsyncIoEvents::default();
    let async_ios = AsyncIoReader::new(message.async_io_events.as_ref().unwrap_or(&none));
    let none = message::FaultEvents::default();
    let faults = FaultReader::new(message.fault_events.as_ref().unwrap_or(&none));
    let processes = ProcessContextReader::new(&message.process_context_events);
    let machines = VirtualMachineReader::new(&message.virtual_machine_events);
    let mut outside =
        OutsideKinds { processes, origins, async_ios, faults, machines, processes_read: 0, origins_read: 0 };
    for (before, kind) in message.kinds.iter().enumerate() {
        outside.up_to(before, calls_unknown, tables, &mut events)?;
        let time = MonotonicNs(last.decode(*times.next()?));
        events.push(match Kind::try_from(*kind) {
            Ok(Kind::Syscall) => match calls.next(time, tables)? {
                Some(call) => LayerEvent::Syscall(call),
                None => {
                    calls_unknown += 1;
                    continue;
                }
            },
            Ok(Kind::Bio) => LayerEvent::Bio(blocks.bio(time, tables)?),
            Ok(Kind::Request) => LayerEvent::Request(blocks.request(time, None, tables)?),
            Ok(Kind::Pair) => LayerEvent::Pair(blocks.pair(time, tables)?),
            Ok(Kind::Commit) => LayerEvent::Commit(commits.next(time, tables)?),
            Ok(Kind::Task) => LayerEvent::Task(names.task(time, tables)?),
            Ok(Kind::File) => LayerEvent::File(names.file(time, tables)?),
            Ok(Kind::Device) => LayerEvent::Device(names.device(time, tables)?),
            Ok(Kind::RpcEndpoint) => LayerEvent::RpcEndpoint(endpoints.next(time, tables)?.into()),
            Ok(Kind::DaemonSpan) => LayerEvent::DaemonSpan(daemon_spans.next(time, tables)?.into()),
            Ok(Kind::Unspecified) | Err(_) => {
                return Err(Malformed::Value { column: "EventBatch.kinds", value: *kind as u64 });
            }
        });
    }
    outside.up_to(message.kinds.len(), calls_unknown, tables, &mut events)?;
    // A newer writer may know further events, which are not counted here.
    while outside.faults.next_if_due(usize::MAX, tables, &mut events)?
        || outside.machines.next_if_due(usize::MAX, &mut events)?
    {}
    outside.end()?;
    times.end()?;
    calls.end()?;
    blocks.end()?;
    commits.end()?;
    names.end()?;
    endpoints.end()?;
    daemon_spans.end()?;
    Ok((events, calls_unknown))
}

/// Readers of the events that are not in `kinds`. Each knows how many events precede its next one: a
/// process context counts those in `kinds`, a page origin also process contexts, asynchronous I/O also
/// page origins, and page faults and virtual machines all.
struct OutsideKinds<'a> {
    processes: ProcessContextReader<'a>,
    origins: PageOriginReader<'a>,
    async_ios: AsyncIoReader<'a>,
    faults: FaultReader<'a>,
    machines: VirtualMachineReader<'a>,
    /// Number of process contexts so far.
    processes_read: usize,
    /// Number of page origins so far.
    origins_read: usize,
}

impl OutsideKinds<'_> {
    /// Appends the events that precede or follow directly after the first `before` of `kinds`.
    fn up_to(
        &mut self,
        before: usize,
        calls_unknown: u64,
        tables: &DecodeTables<'_>,
        events: &mut Vec<LayerEvent>,
    ) -> Result<(), Malformed> {
        loop {
            let all = events.len() + calls_unknown as usize;
            let before_origin = before + self.processes_read;
            if self.faults.next_if_due(all, tables, events)?
                || self.machines.next_if_due(all, events)?
                || self.async_ios.next_if_due(before_origin + self.origins_read, tables, events)?
            {
                continue;
            }
            if self.origins.next_if_due(before_origin, tables, events)? {
                self.origins_read += 1;
            } else if self.processes.next_if_due(before, tables, events)? {
                self.processes_read += 1;
            } else {
                return Ok(());
            }
        }
    }

    fn end(&mut self) -> Result<(), Malformed> {
        self.processes.end()?;
        self.origins.end()?;
        self.async_ios.end()?;
        self.faults.end()
    }
}
