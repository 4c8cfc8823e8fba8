//! Dictionaries of a batch that is encoded: events refer to tasks, files, devices, system calls,
//! strings and contexts by index.
//!
//! *In*: values, in order of their first use. *Out*: their indices, and the dictionary fields of the
//! message. *Invariant*: equal values have one index.

use super::BY_RULE;
use super::column::Delta;
use super::dictionary::Dictionary;
use super::ids::{IdWriter, Origins};
use super::interned_strings::InternedStrings;
use super::message;
use super::thread_attributes::AttributeSets;
use crate::event::{ContextSource, TaskRef, TraceContext};
use crate::ids::{FileId, NameId};
use crate::syscalls::SyscallId;

/// Dictionaries of a batch under construction.
pub(super) struct EncodeTables<'a> {
    pub(super) origins: Origins,
    pub(super) tasks: Dictionary<TaskRef>,
    pub(super) files: Dictionary<FileId>,
    /// Device numbers in the kernel's encoding.
    pub(super) devices: Dictionary<u32>,
    pub(super) calls: Dictionary<SyscallId>,
    pub(super) strings: InternedStrings<'a>,
    pub(super) contexts: Dictionary<TraceContext>,
    pub(super) attributes: AttributeSets<'a>,
}

impl EncodeTables<'_> {
    /// Creates empty dictionaries for a batch of this start.
    pub(super) fn new(epoch: u64) -> Self {
        EncodeTables {
            origins: Origins::new(epoch),
            tasks: Dictionary::new(),
            files: Dictionary::new(),
            devices: Dictionary::new(),
            calls: Dictionary::new(),
            strings: InternedStrings::default(),
            contexts: Dictionary::new(),
            attributes: AttributeSets::default(),
        }
    }

    /// Returns the dictionary of tasks.
    pub(super) fn tasks_message(&mut self) -> message::Tasks {
        let EncodeTables { origins, tasks, .. } = self;
        let mut ids = IdWriter::default();
        tasks.values().iter().for_each(|task| origins.put(&mut ids, task.id.0));
        let version = tasks.values().iter().map(|task| task.version.into()).collect();
        message::Tasks { task: ids.end(), version }
    }

    /// Returns the dictionary of files.
    pub(super) fn files_message(&self) -> message::Files {
        let (mut files, mut inode) = (message::Files::default(), Delta::default());
        for file in self.files.values() {
            files.device.push(file.device.to_kernel());
            files.inode.push(inode.encode(file.ino));
            files.generation.push(file.generation);
        }
        files
    }

    /// Returns the name of each file in the dictionary; empty if all are unknown.
    pub(super) fn file_names(&self) -> Vec<u64> {
        let files = self.files.values();
        if files.iter().all(|file| file.name == NameId::NONE) {
            return Vec::new();
        }
        files.iter().map(|file| file.name.0).collect()
    }

    /// Returns the contexts; none if no call has one, so that the field is absent.
    pub(super) fn contexts_message(&self) -> Option<message::Contexts> {
        let values = self.contexts.values();
        let mut contexts = message::Contexts::default();
        let any = values.iter().any(|context| context.source == ContextSource::Both);
        for TraceContext { trace, span, flags, source: from } in values {
            contexts.trace_high.push((trace.0 >> 64) as u64);
            contexts.trace_low.push(trace.0 as u64);
            contexts.span.push(span.0);
            let by_rule = if *from == ContextSource::DaemonSpan { BY_RULE } else { 0 };
            contexts.flags.push(u32::from(*flags) | by_rule);
            // The column is absent if no context is a daemon span.
            contexts.daemon_span.extend(any.then_some(*from == ContextSource::Both));
        }
        (!values.is_empty()).then_some(contexts)
    }

    /// Returns the dictionary of system calls.
    pub(super) fn syscall_messages(&self) -> Vec<message::Syscall> {
        self.calls.values().iter().map(syscall_message).collect()
    }
}

fn syscall_message(call: &SyscallId) -> message::Syscall {
    message::Syscall { name: call.name().to_owned(), arguments: call.spec().args.len() as u32 }
}
