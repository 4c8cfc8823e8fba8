//! Dictionaries of a batch that is decoded: `task`, `file`, `device`, `syscall` and context columns
//! are indices into them.
//!
//! *In*: the dictionary fields of an `EventBatch`. *Out*: the values by index. *Invariant*: an index
//! without a value is an error that names the column.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use super::column::{Column, Delta};
use super::ids::{IdOrigins, IdReader};
use super::message;
use super::thread_attributes;
use super::{BY_RULE, COPIED_BYTES_MAX, Malformed};
use crate::event::{ContextSource, TaskRef, TraceContext};
use crate::ids::{DeviceId, FileId, NameId, SpanId, TaskId, TraceId};
use crate::syscalls::{Args, SyscallId};
use crate::thread_attributes::ThreadAttributes;

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
    /// Strings that many events have, by index: one copy of each.
    shared_strings: RefCell<HashMap<u32, Arc<str>>>,
}

impl<'a> DecodeTables<'a> {
    /// Reads the dictionaries of a message.
    pub(super) fn of(message: &'a message::EventBatch) -> Result<Self, Malformed> {
        let ids = IdOrigins::new(message.epoch, &message.origins, &message.counters)?;
        let tasks = tasks(&message.tasks, &ids)?;
        let mut tables = DecodeTables {
            tasks,
            files: files(&message.files, &message.file_names)?,
            devices: message.devices.iter().copied().map(DeviceId::from_kernel).collect(),
            strings: &message.strings,
            contexts: message.contexts.as_ref().map_or(Ok(Vec::new()), contexts)?,
            calls: message.syscalls.iter().map(call).collect::<Result<_, _>>()?,
            ids,
            attributes: Vec::new(),
            copy_budget: Cell::new(COPIED_BYTES_MAX),
            shared_strings: RefCell::default(),
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

    /// Returns the copy of a string that all events share.
    pub(super) fn shared_string(&self, index: &u32, column: &'static str) -> Result<Arc<str>, Malformed> {
        let refuse = || Malformed::Value { column, value: (*index).into() };
        let string = self.strings.get(*index as usize).ok_or_else(refuse)?;
        let mut shared = self.shared_strings.borrow_mut();
        Ok(shared.entry(*index).or_insert_with(|| string.as_str().into()).clone())
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

fn files(message: &message::Files, names: &[u64]) -> Result<Vec<FileId>, Malformed> {
    let mut device = Column::new(&message.device, "Files.device");
    let mut generation = Column::new(&message.generation, "Files.generation");
    let mut names = Column::new(names, "EventBatch.file_names");
    let named = !names.is_empty();
    let mut last = Delta::default();
    let files = message.inode.iter().map(|inode| {
        Ok(FileId {
            device: DeviceId::from_kernel(*device.next()?),
            ino: last.decode(*inode),
            generation: *generation.next()?,
            name: NameId(names.next_if(named)?.copied().unwrap_or_default()),
        })
    });
    let files = files.collect::<Result<_, _>>()?;
    device.end()?;
    generation.end()?;
    names.end()?;
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
