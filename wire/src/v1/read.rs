//! Decoder of event batches. It trusts no byte and checks each value.

use std::cell::Cell;
use std::sync::Arc;

use prost::Message;

use super::block::BlockReader;
use super::column::{Column, Delta};
use super::commit::CommitReader;
use super::crash_report;
use super::daemon_span::DaemonSpanReader;
use super::ids::{IdOrigins, IdReader};
use super::message::{self, Kind};
use super::name::NameReader;
use super::process_context::ProcessContextReader;
use super::rpc_endpoint::RpcEndpointReader;
use super::syscall::SyscallReader;
use super::thread_attributes;
use super::write::BY_RULE;
use super::{COPIED_BYTES_MAX, Malformed, VERSION, frame};
use crate::batch::EventBatch;
use crate::clock::MonotonicNs;
use crate::event::{ContextSource, LayerEvent, TaskRef, TraceContext};
use crate::ids::{DeviceId, FileId, SpanId, TaskId, TraceId};
use crate::syscalls::{Args, SyscallId};
use crate::thread_attributes::ThreadAttributes;

/// Decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Batch.
    pub batch: EventBatch,
    /// Number of system calls skipped because this version's table lacks them: a newer tracer wrote
    /// them.
    pub calls_unknown: u64,
}

/// Dictionaries of a batch.
pub(super) struct DecodeTables<'a> {
    pub(super) ids: IdOrigins<'a>,
    tasks: Vec<TaskRef>,
    files: Vec<FileId>,
    devices: Vec<DeviceId>,
    strings: &'a [String],
    contexts: Vec<TraceContext>,
    attributes: Vec<Arc<ThreadAttributes>>,
    /// System calls with their argument counts; none for an unknown call.
    pub(super) calls: Vec<(Option<SyscallId>, usize)>,
    /// Remaining budget in bytes for copied strings.
    copy_budget: Cell<usize>,
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
    let mut processes = ProcessContextReader::new(&message.process_context_events);
    for (before, kind) in message.kinds.iter().enumerate() {
        processes.up_to(before, tables, &mut events)?;
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
    processes.up_to(message.kinds.len(), tables, &mut events)?;
    processes.end()?;
    times.end()?;
    calls.end()?;
    blocks.end()?;
    commits.end()?;
    names.end()?;
    endpoints.end()?;
    daemon_spans.end()?;
    Ok((events, calls_unknown))
}

impl<'a> DecodeTables<'a> {
    fn of(message: &'a message::EventBatch) -> Result<Self, Malformed> {
        let ids = IdOrigins::new(message.epoch, &message.origins, &message.counters)?;
        let tasks = tasks(&message.tasks, &ids)?;
        let mut tables = DecodeTables {
            tasks,
            files: files(&message.files)?,
            devices: message.devices.iter().copied().map(DeviceId::from_kernel).collect(),
            strings: &message.strings,
            contexts: message.contexts.as_ref().map_or(Ok(Vec::new()), contexts)?,
            calls: message.syscalls.iter().map(call).collect::<Result<_, _>>()?,
            ids,
            attributes: Vec::new(),
            copy_budget: Cell::new(COPIED_BYTES_MAX),
        };
        if let Some(sets) = &message.thread_attributes {
            tables.attributes =
                thread_attributes::read(sets, |index| tables.string(index, "ThreadAttributes.value"))?;
        }
        Ok(tables)
    }

    pub(super) fn task(&self, index: &u32, column: &'static str) -> Result<TaskRef, Malformed> {
        lookup(&self.tasks, *index, column)
    }

    pub(super) fn file(&self, index: &u32, column: &'static str) -> Result<FileId, Malformed> {
        lookup(&self.files, *index, column)
    }

    pub(super) fn context(&self, index: &u32, column: &'static str) -> Result<TraceContext, Malformed> {
        lookup(&self.contexts, *index, column)
    }

    pub(super) fn attributes(
        &self,
        index: &u32,
        column: &'static str,
    ) -> Result<Arc<ThreadAttributes>, Malformed> {
        let set = self.attributes.get(*index as usize).cloned();
        set.ok_or(Malformed::Value { column, value: (*index).into() })
    }

    pub(super) fn string(&self, index: &u32, column: &'static str) -> Result<Box<str>, Malformed> {
        let refuse = || Malformed::Value { column, value: (*index).into() };
        let string = self.strings.get(*index as usize).ok_or_else(refuse)?;
        // A long string that a short record references often multiplies its size.
        self.copy_budget.set(self.copy_budget.get().checked_sub(string.len()).ok_or_else(refuse)?);
        Ok(string.as_str().into())
    }

    pub(super) fn device(&self, index: &u32, column: &'static str) -> Result<DeviceId, Malformed> {
        lookup(&self.devices, *index, column)
    }
}

fn lookup<T: Copy>(values: &[T], index: u32, column: &'static str) -> Result<T, Malformed> {
    values.get(index as usize).copied().ok_or(Malformed::Value { column, value: index.into() })
}

fn tasks(message: &message::Tasks, ids: &IdOrigins<'_>) -> Result<Vec<TaskRef>, Malformed> {
    let mut column = IdReader::new(&message.task, "Tasks.task");
    let tasks = message.version.iter().map(|version| {
        let refuse = |_| Malformed::Value { column: "Tasks.version", value: (*version).into() };
        let version = u16::try_from(*version).map_err(refuse)?;
        Ok(TaskRef { id: TaskId(column.next(ids)?), version })
    });
    let tasks = tasks.collect::<Result<_, _>>()?;
    column.end()?;
    Ok(tasks)
}

fn files(message: &message::Files) -> Result<Vec<FileId>, Malformed> {
    let mut device = Column::new(&message.device, "Files.device");
    let mut generation = Column::new(&message.generation, "Files.generation");
    let mut last = Delta::default();
    let files = message.inode.iter().map(|inode| {
        Ok(FileId {
            device: DeviceId::from_kernel(*device.next()?),
            ino: last.decode(*inode),
            generation: *generation.next()?,
        })
    });
    let files = files.collect::<Result<_, _>>()?;
    device.end()?;
    generation.end()?;
    Ok(files)
}

fn contexts(message: &message::Contexts) -> Result<Vec<TraceContext>, Malformed> {
    let mut high = Column::new(&message.trace_high, "Contexts.trace_high");
    let mut low = Column::new(&message.trace_low, "Contexts.trace_low");
    let mut flags = Column::new(&message.flags, "Contexts.flags");
    let mut daemon_span = Column::new(&message.daemon_span, "Contexts.daemon_span");
    let contexts = message.span.iter().map(|span| {
        let (high, low, flags_value) = (*high.next()?, *low.next()?, *flags.next()?);
        let trace = TraceId(u128::from(high) << 64 | u128::from(low));
        // A context has a non-zero trace id and span id (W3C trace context, 3.2.2.3 and 3.2.2.4).
        if trace.0 == 0 || *span == 0 {
            return Err(Malformed::Value { column: "Contexts.span", value: *span });
        }
        let daemon_span = !message.daemon_span.is_empty() && *daemon_span.next()?;
        let from = match (flags_value & BY_RULE == 0, daemon_span) {
            (false, _) => ContextSource::DaemonSpan,
            (true, true) => ContextSource::Both,
            (true, false) => ContextSource::ThreadContext,
        };
        let flags = u8::try_from(flags_value & !BY_RULE).map_err(|_| flags.refuse(flags_value.into()))?;
        Ok(TraceContext { trace, span: SpanId(*span), flags, source: from })
    });
    let contexts = contexts.collect::<Result<_, _>>()?;
    high.end()?;
    low.end()?;
    flags.end()?;
    daemon_span.end()?;
    Ok(contexts)
}

fn call(message: &message::Syscall) -> Result<(Option<SyscallId>, usize), Malformed> {
    let own = message.arguments as usize;
    if own > size_of::<Args>() / size_of::<u64>() {
        return Err(Malformed::Value { column: "Syscall.arguments", value: message.arguments.into() });
    }
    Ok((SyscallId::by_name(&message.name), own))
}
