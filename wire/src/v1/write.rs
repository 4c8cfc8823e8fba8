//! Encoder of event batches.

use prost::Message;

use super::VERSION;
use super::block::{BioWriter, RequestWriter};
use super::column::Delta;
use super::commit::CommitWriter;
use super::crash_report;
use super::daemon_span::DaemonSpanWriter;
use super::dictionary::Dictionary;
use super::frame;
use super::ids::{IdWriter, Origins};
use super::interned_strings::InternedStrings;
use super::message::{self, Kind};
use super::name::NameWriter;
use super::process_context;
use super::rpc_endpoint::RpcEndpointWriter;
use super::syscall::SyscallWriter;
use super::thread_attributes::AttributeSets;
use crate::batch::EventBatch;
use crate::event::{ContextSource, LayerEvent, TaskRef, TraceContext};
use crate::ids::FileId;
use crate::syscalls::SyscallId;

/// Flag of a context, above the W3C trace flags: derived by rule.
pub(super) const BY_RULE: u32 = 1 << 8;

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

/// Encodes a batch. The result is not compressed; the transport compresses.
pub fn encode(batch: &EventBatch) -> Vec<u8> {
    let mut tables = EncodeTables {
        origins: Origins::new(batch.source.epoch.0),
        tasks: Dictionary::new(),
        files: Dictionary::new(),
        devices: Dictionary::new(),
        calls: Dictionary::new(),
        strings: InternedStrings::default(),
        contexts: Dictionary::new(),
        attributes: AttributeSets::default(),
    };
    let (mut kinds, mut times) =
        (Vec::with_capacity(batch.events.len()), Vec::with_capacity(batch.events.len()));
    let mut time = Delta::default();
    let (mut calls, mut bios, mut requests) =
        (SyscallWriter::default(), BioWriter::default(), RequestWriter::default());
    let (mut commits, mut names) = (CommitWriter::default(), NameWriter::default());
    let (mut endpoints, mut daemon_spans) = (RpcEndpointWriter::default(), DaemonSpanWriter::default());
    let mut process_events = Vec::new();
    for event in &batch.events {
        let kind = match event {
            LayerEvent::Syscall(call) => {
                calls.put(call, &mut tables);
                Kind::Syscall
            }
            LayerEvent::Bio(bio) => {
                bios.put(bio, None, &mut tables);
                Kind::Bio
            }
            LayerEvent::Request(request) => {
                requests.put(request, None, &mut tables);
                Kind::Request
            }
            LayerEvent::Pair(pair) => {
                bios.put(&pair.bio, Some(&pair.request), &mut tables);
                requests.put(&pair.request, Some(&pair.bio), &mut tables);
                Kind::Pair
            }
            LayerEvent::Commit(commit) => {
                commits.put(commit, &mut tables);
                Kind::Commit
            }
            LayerEvent::Task(task) => {
                names.put_task(task, &mut tables);
                Kind::Task
            }
            LayerEvent::File(file) => {
                names.put_file(file, &mut tables);
                Kind::File
            }
            LayerEvent::Device(device) => {
                names.put_device(device, &mut tables);
                Kind::Device
            }
            LayerEvent::RpcEndpoint(endpoint) => {
                endpoints.put(endpoint, &mut tables);
                Kind::RpcEndpoint
            }
            LayerEvent::DaemonSpan(span) => {
                daemon_spans.put(span, &mut tables);
                Kind::DaemonSpan
            }
            LayerEvent::ProcessContext(process) => {
                process_events.push(process_context::write(process, kinds.len(), &mut tables));
                continue;
            }
        };
        times.push(time.encode(event.time().0));
        kinds.push(kind.into());
    }
    let (task_events, file_events, device_events) = names.end();
    let tasks = tasks(&mut tables);
    let files = files(&tables);
    let calls_used = tables.calls.values().iter().map(call).collect();
    let devices = tables.devices.values().to_vec();
    let contexts = contexts(&tables);
    let thread_attributes = tables.attributes.end(&mut tables.strings);
    let (origins, counters) = tables.origins.end();
    let message = message::EventBatch {
        version: VERSION,
        node: batch.source.node.0.to_be_bytes().to_vec(),
        boot: batch.source.boot.0.to_be_bytes().to_vec(),
        epoch: batch.source.epoch.0,
        sequence: batch.sequence,
        anchor: frame::write_anchor(&batch.anchor),
        watermark: batch.watermark.0,
        stats: frame::write_stats(&batch.stats),
        crashed_runs: batch.crashed_runs.iter().map(crash_report::write).collect(),
        kinds,
        times,
        origins,
        counters,
        tasks,
        files,
        devices,
        syscalls: calls_used,
        strings: tables.strings.end(),
        contexts,
        syscall_events: calls.end(),
        bio_events: bios.end(),
        request_events: requests.end(),
        commit_events: commits.end(),
        task_events,
        file_events,
        device_events,
        rpc_endpoint_events: endpoints.end(),
        daemon_span_events: daemon_spans.end(),
        process_context_events: process_events,
        thread_attributes,
    };
    message.encode_to_vec()
}

fn tasks(tables: &mut EncodeTables<'_>) -> message::Tasks {
    let EncodeTables { origins, tasks, .. } = tables;
    let mut ids = IdWriter::default();
    tasks.values().iter().for_each(|task| origins.put(&mut ids, task.id.0));
    let version = tasks.values().iter().map(|task| task.version.into()).collect();
    message::Tasks { task: ids.end(), version }
}

fn files(tables: &EncodeTables<'_>) -> message::Files {
    let (mut files, mut inode) = (message::Files::default(), Delta::default());
    for file in tables.files.values() {
        files.device.push(file.device.to_kernel());
        files.inode.push(inode.encode(file.ino));
        files.generation.push(file.generation);
    }
    files
}

/// Returns the contexts; none if no call has one, so that the field is absent.
fn contexts(tables: &EncodeTables<'_>) -> Option<message::Contexts> {
    let values = tables.contexts.values();
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

fn call(call: &SyscallId) -> message::Syscall {
    message::Syscall { name: call.name().to_owned(), arguments: call.spec().args.len() as u32 }
}
