//! A batch to bytes.

use prost::Message;

use super::VERSION;
use super::attributes::AttributeSets;
use super::block::{BioWriter, RequestWriter};
use super::call::CallWriter;
use super::column::Delta;
use super::commit::CommitWriter;
use super::dictionary::Dictionary;
use super::ids::{IdWriter, Origins};
use super::killed;
use super::meeting::MeetingWriter;
use super::message::{self, Kind};
use super::name::NameWriter;
use super::operation::OperationWriter;
use super::process;
use super::totals;
use super::words::Words;
use crate::batch::EventBatch;
use crate::calls::CallId;
use crate::event::{ContextFrom, LayerEvent, TaskRef, TraceContext};
use crate::ids::FileId;

/// In a context's flags, above those of W3C trace context.
pub(super) const BY_RULE: u32 = 1 << 8;

/// What all kinds refer to.
pub(super) struct Shared<'a> {
    pub(super) origins: Origins,
    pub(super) tasks: Dictionary<TaskRef>,
    pub(super) files: Dictionary<FileId>,
    /// As the kernel has them.
    pub(super) devices: Dictionary<u32>,
    pub(super) calls: Dictionary<CallId>,
    pub(super) words: Words<'a>,
    pub(super) contexts: Dictionary<TraceContext>,
    pub(super) attributes: AttributeSets<'a>,
}

/// The batch as bytes, to be compressed by whoever carries them.
pub fn encode(batch: &EventBatch) -> Vec<u8> {
    let mut shared = Shared {
        origins: Origins::new(batch.source.epoch.0),
        tasks: Dictionary::new(),
        files: Dictionary::new(),
        devices: Dictionary::new(),
        calls: Dictionary::new(),
        words: Words::default(),
        contexts: Dictionary::new(),
        attributes: AttributeSets::default(),
    };
    let (mut kinds, mut times) =
        (Vec::with_capacity(batch.events.len()), Vec::with_capacity(batch.events.len()));
    let mut time = Delta::default();
    let (mut calls, mut bios, mut requests) =
        (CallWriter::default(), BioWriter::default(), RequestWriter::default());
    let (mut commits, mut names) = (CommitWriter::default(), NameWriter::default());
    let (mut meetings, mut operations) = (MeetingWriter::default(), OperationWriter::default());
    let mut process_events = Vec::new();
    for event in &batch.events {
        let kind = match event {
            LayerEvent::Call(call) => {
                calls.put(call, &mut shared);
                Kind::Call
            }
            LayerEvent::Bio(bio) => {
                bios.put(bio, None, &mut shared);
                Kind::Bio
            }
            LayerEvent::Request(request) => {
                requests.put(request, None, &mut shared);
                Kind::Request
            }
            LayerEvent::Pair(pair) => {
                bios.put(&pair.bio, Some(&pair.request), &mut shared);
                requests.put(&pair.request, Some(&pair.bio), &mut shared);
                Kind::Pair
            }
            LayerEvent::Commit(commit) => {
                commits.put(commit, &mut shared);
                Kind::Commit
            }
            LayerEvent::Task(task) => {
                names.put_task(task, &mut shared);
                Kind::Task
            }
            LayerEvent::File(file) => {
                names.put_file(file, &mut shared);
                Kind::File
            }
            LayerEvent::Device(device) => {
                names.put_device(device, &mut shared);
                Kind::Device
            }
            LayerEvent::Meeting(meeting) => {
                meetings.put(meeting, &mut shared);
                Kind::Meeting
            }
            LayerEvent::Operation(operation) => {
                operations.put(operation, &mut shared);
                Kind::Operation
            }
            LayerEvent::Process(process) => {
                process_events.push(process::write(process, kinds.len(), &mut shared));
                continue;
            }
        };
        times.push(time.of(event.time().0));
        kinds.push(kind.into());
    }
    let (task_events, file_events, device_events) = names.end();
    let tasks = tasks(&mut shared);
    let files = files(&shared);
    let calls_used = shared.calls.values().iter().map(call).collect();
    let devices = shared.devices.values().to_vec();
    let contexts = contexts(&shared);
    let thread_attributes = shared.attributes.end(&mut shared.words);
    let (origins, counters) = shared.origins.end();
    let message = message::EventBatch {
        version: VERSION,
        node: batch.source.node.0.to_be_bytes().to_vec(),
        boot: batch.source.boot.0.to_be_bytes().to_vec(),
        epoch: batch.source.epoch.0,
        sequence: batch.sequence,
        anchor: totals::write_anchor(&batch.anchor),
        watermark: batch.watermark.0,
        accounts: totals::write_accounts(&batch.accounts),
        killed: batch.killed.iter().map(killed::write).collect(),
        kinds,
        times,
        origins,
        counters,
        tasks,
        files,
        devices,
        calls: calls_used,
        words: shared.words.end(),
        contexts,
        call_events: calls.end(),
        bio_events: bios.end(),
        request_events: requests.end(),
        commit_events: commits.end(),
        task_events,
        file_events,
        device_events,
        meeting_events: meetings.end(),
        operation_events: operations.end(),
        process_events,
        thread_attributes,
    };
    message.encode_to_vec()
}

fn tasks(shared: &mut Shared<'_>) -> message::Tasks {
    let Shared { origins, tasks, .. } = shared;
    let mut ids = IdWriter::default();
    tasks.values().iter().for_each(|task| origins.put(&mut ids, task.id.0));
    let version = tasks.values().iter().map(|task| task.version.into()).collect();
    message::Tasks { task: ids.end(), version }
}

fn files(shared: &Shared<'_>) -> message::Files {
    let (mut files, mut inode) = (message::Files::default(), Delta::default());
    for file in shared.files.values() {
        files.device.push(file.device.to_kernel());
        files.inode.push(inode.of(file.ino));
        files.generation.push(file.generation);
    }
    files
}

/// None where no call has one: then there is not even a field of it.
fn contexts(shared: &Shared<'_>) -> Option<message::Contexts> {
    let values = shared.contexts.values();
    let mut contexts = message::Contexts::default();
    let any = values.iter().any(|context| context.from == ContextFrom::Both);
    for TraceContext { trace, span, flags, from } in values {
        contexts.trace_high.push((trace.0 >> 64) as u64);
        contexts.trace_low.push(trace.0 as u64);
        contexts.span.push(span.0);
        let by_rule = if *from == ContextFrom::Events { BY_RULE } else { 0 };
        contexts.flags.push(u32::from(*flags) | by_rule);
        // Where none is one there is not even the column.
        contexts.operation.extend(any.then_some(*from == ContextFrom::Both));
    }
    (!values.is_empty()).then_some(contexts)
}

fn call(call: &CallId) -> message::Call {
    message::Call { name: call.name().to_owned(), arguments: call.spec().args.len() as u32 }
}
