//! Bytes to a batch: the one place where they are believed, and only value by value.

use std::cell::Cell;
use std::sync::Arc;

use prost::Message;

use super::attributes;
use super::block::BlockReader;
use super::call::CallReader;
use super::column::{Column, Delta};
use super::commit::CommitReader;
use super::ids::{Dictionaries, IdReader};
use super::killed;
use super::meeting::MeetingReader;
use super::message::{self, Kind};
use super::name::NameReader;
use super::operation::OperationReader;
use super::process::ProcessReader;
use super::write::BY_RULE;
use super::{COPIED_BYTES_MAX, Malformed, VERSION, totals};
use crate::attributes::ThreadAttributes;
use crate::batch::EventBatch;
use crate::calls::{Args, CallId};
use crate::clock::MonotonicNs;
use crate::event::{ContextFrom, LayerEvent, TaskRef, TraceContext};
use crate::ids::{DeviceId, FileId, SpanId, TaskId, TraceId};

/// What bytes hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The batch.
    pub batch: EventBatch,
    /// Calls that it had besides, which the table of this version has not: somebody newer wrote it.
    pub calls_unknown: u64,
}

/// A batch's dictionaries.
pub(super) struct Known<'a> {
    pub(super) ids: Dictionaries<'a>,
    tasks: Vec<TaskRef>,
    files: Vec<FileId>,
    devices: Vec<DeviceId>,
    words: &'a [String],
    contexts: Vec<TraceContext>,
    attributes: Vec<Arc<ThreadAttributes>>,
    /// With how many arguments each has; none that is unknown here.
    pub(super) calls: Vec<(Option<CallId>, usize)>,
    /// What words may still come to, all together.
    left: Cell<usize>,
}

/// Reads a record of the topic.
pub fn decode(bytes: &[u8]) -> Result<Decoded, Malformed> {
    let message =
        message::EventBatch::decode(bytes).map_err(|error| Malformed::Protobuf(error.to_string()))?;
    if message.version != VERSION {
        return Err(Malformed::Version(message.version));
    }
    let known = Known::of(&message)?;
    let (events, calls_unknown) = events(&message, &known)?;
    let batch = EventBatch {
        source: totals::read_source(&message.node, &message.boot, message.epoch)?,
        sequence: message.sequence,
        anchor: totals::read_anchor(&message.anchor),
        events,
        watermark: MonotonicNs(message.watermark),
        accounts: totals::read_accounts(&message.accounts),
        killed: message.killed.iter().map(killed::read).collect(),
    };
    Ok(Decoded { batch, calls_unknown })
}

fn events(message: &message::EventBatch, known: &Known<'_>) -> Result<(Vec<LayerEvent>, u64), Malformed> {
    let mut calls = CallReader::new(&message.call_events);
    let mut blocks = BlockReader::new(&message.bio_events, &message.request_events);
    let mut commits = CommitReader::new(&message.commit_events);
    let mut names = NameReader::new(&message.task_events, &message.file_events, &message.device_events);
    let none = message::MeetingEvents::default();
    let mut meetings = MeetingReader::new(message.meeting_events.as_ref().unwrap_or(&none));
    let none = message::OperationEvents::default();
    let mut operations = OperationReader::new(message.operation_events.as_ref().unwrap_or(&none));
    let (mut times, mut last) = (Column::new(&message.times, "EventBatch.times"), Delta::default());
    let (mut events, mut calls_unknown) = (Vec::new(), 0);
    let mut processes = ProcessReader::new(&message.process_events);
    for (before, kind) in message.kinds.iter().enumerate() {
        processes.up_to(before, known, &mut events)?;
        let time = MonotonicNs(last.undo(*times.next()?));
        events.push(match Kind::try_from(*kind) {
            Ok(Kind::Call) => match calls.next(time, known)? {
                Some(call) => LayerEvent::Call(call),
                None => {
                    calls_unknown += 1;
                    continue;
                }
            },
            Ok(Kind::Bio) => LayerEvent::Bio(blocks.bio(time, known)?),
            Ok(Kind::Request) => LayerEvent::Request(blocks.request(time, None, known)?),
            Ok(Kind::Pair) => LayerEvent::Pair(blocks.pair(time, known)?),
            Ok(Kind::Commit) => LayerEvent::Commit(commits.next(time, known)?),
            Ok(Kind::Task) => LayerEvent::Task(names.task(time, known)?),
            Ok(Kind::File) => LayerEvent::File(names.file(time, known)?),
            Ok(Kind::Device) => LayerEvent::Device(names.device(time, known)?),
            Ok(Kind::Meeting) => LayerEvent::Meeting(meetings.next(time, known)?.into()),
            Ok(Kind::Operation) => LayerEvent::Operation(operations.next(time, known)?.into()),
            Ok(Kind::Unspecified) | Err(_) => {
                return Err(Malformed::Value { column: "EventBatch.kinds", value: *kind as u64 });
            }
        });
    }
    processes.up_to(message.kinds.len(), known, &mut events)?;
    processes.end()?;
    times.end()?;
    calls.end()?;
    blocks.end()?;
    commits.end()?;
    names.end()?;
    meetings.end()?;
    operations.end()?;
    Ok((events, calls_unknown))
}

impl<'a> Known<'a> {
    fn of(message: &'a message::EventBatch) -> Result<Self, Malformed> {
        let ids = Dictionaries::new(message.epoch, &message.origins, &message.counters)?;
        let tasks = tasks(&message.tasks, &ids)?;
        let mut known = Known {
            tasks,
            files: files(&message.files)?,
            devices: message.devices.iter().copied().map(DeviceId::from_kernel).collect(),
            words: &message.words,
            contexts: message.contexts.as_ref().map_or(Ok(Vec::new()), contexts)?,
            calls: message.calls.iter().map(call).collect::<Result<_, _>>()?,
            ids,
            attributes: Vec::new(),
            left: Cell::new(COPIED_BYTES_MAX),
        };
        if let Some(sets) = &message.thread_attributes {
            known.attributes = attributes::read(sets, |place| known.word(place, "ThreadAttributes.value"))?;
        }
        Ok(known)
    }

    pub(super) fn task(&self, place: &u32, column: &'static str) -> Result<TaskRef, Malformed> {
        at(&self.tasks, *place, column)
    }

    pub(super) fn file(&self, place: &u32, column: &'static str) -> Result<FileId, Malformed> {
        at(&self.files, *place, column)
    }

    pub(super) fn context(&self, place: &u32, column: &'static str) -> Result<TraceContext, Malformed> {
        at(&self.contexts, *place, column)
    }

    pub(super) fn attributes(
        &self,
        place: &u32,
        column: &'static str,
    ) -> Result<Arc<ThreadAttributes>, Malformed> {
        let set = self.attributes.get(*place as usize).cloned();
        set.ok_or(Malformed::Value { column, value: (*place).into() })
    }

    pub(super) fn word(&self, place: &u32, column: &'static str) -> Result<Box<str>, Malformed> {
        let refuse = || Malformed::Value { column, value: (*place).into() };
        let word = self.words.get(*place as usize).ok_or_else(refuse)?;
        // A long word that a short record names again and again grows when it is read.
        self.left.set(self.left.get().checked_sub(word.len()).ok_or_else(refuse)?);
        Ok(word.as_str().into())
    }

    pub(super) fn device(&self, place: &u32, column: &'static str) -> Result<DeviceId, Malformed> {
        at(&self.devices, *place, column)
    }
}

fn at<T: Copy>(values: &[T], place: u32, column: &'static str) -> Result<T, Malformed> {
    values.get(place as usize).copied().ok_or(Malformed::Value { column, value: place.into() })
}

fn tasks(message: &message::Tasks, ids: &Dictionaries<'_>) -> Result<Vec<TaskRef>, Malformed> {
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
            ino: last.undo(*inode),
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
    let mut operation = Column::new(&message.operation, "Contexts.operation");
    let contexts = message.span.iter().map(|span| {
        let (high, low, flags_said) = (*high.next()?, *low.next()?, *flags.next()?);
        let trace = TraceId(u128::from(high) << 64 | u128::from(low));
        // No trace and no span is none (W3C trace context, 3.2.2.3 and 3.2.2.4).
        if trace.0 == 0 || *span == 0 {
            return Err(Malformed::Value { column: "Contexts.span", value: *span });
        }
        let operation = !message.operation.is_empty() && *operation.next()?;
        let from = match (flags_said & BY_RULE == 0, operation) {
            (false, _) => ContextFrom::Events,
            (true, true) => ContextFrom::Both,
            (true, false) => ContextFrom::Thread,
        };
        let flags = u8::try_from(flags_said & !BY_RULE).map_err(|_| flags.refuse(flags_said.into()))?;
        Ok(TraceContext { trace, span: SpanId(*span), flags, from })
    });
    let contexts = contexts.collect::<Result<_, _>>()?;
    high.end()?;
    low.end()?;
    flags.end()?;
    operation.end()?;
    Ok(contexts)
}

fn call(message: &message::Call) -> Result<(Option<CallId>, usize), Malformed> {
    let own = message.arguments as usize;
    if own > size_of::<Args>() / size_of::<u64>() {
        return Err(Malformed::Value { column: "Call.arguments", value: message.arguments.into() });
    }
    Ok((CallId::by_name(&message.name), own))
}
