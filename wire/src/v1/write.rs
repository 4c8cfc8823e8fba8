//! Encoder of event batches.

use prost::Message;

use super::VERSION;
use super::async_io::AsyncIoWriter;
use super::block::{BioWriter, RequestWriter};
use super::column::Delta;
use super::commit::CommitWriter;
use super::crash_report;
use super::daemon_span::DaemonSpanWriter;
use super::encode_tables::EncodeTables;
use super::frame;
use super::message::{self, Kind};
use super::name::NameWriter;
use super::page_fault::FaultWriter;
use super::page_origin::PageOriginWriter;
use super::process_context;
use super::rpc_endpoint::RpcEndpointWriter;
use super::syscall::SyscallWriter;
use super::virtual_machine;
use crate::batch::EventBatch;
use crate::event::LayerEvent;

/// Encodes a batch. The result is not compressed; the transport compresses.
pub fn encode(batch: &EventBatch) -> Vec<u8> {
    let mut tables = EncodeTables::new(batch.source.epoch.0);
    let (mut kinds, mut times) =
        (Vec::with_capacity(batch.events.len()), Vec::with_capacity(batch.events.len()));
    let mut time = Delta::default();
    let (mut calls, mut bios, mut requests) =
        (SyscallWriter::default(), BioWriter::default(), RequestWriter::default());
    let (mut commits, mut names) = (CommitWriter::default(), NameWriter::default());
    let (mut endpoints, mut daemon_spans) = (RpcEndpointWriter::default(), DaemonSpanWriter::default());
    let (mut process_events, mut page_origins) = (Vec::new(), PageOriginWriter::default());
    let (mut async_ios, mut faults) = (AsyncIoWriter::default(), FaultWriter::default());
    let mut virtual_machine_events = Vec::new();
    let (mut origins_written, mut written) = (0, 0);
    for event in &batch.events {
        // Dirty pages stay on the node.
        written += usize::from(!matches!(event, LayerEvent::Dirty(_)));
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
            LayerEvent::AsyncIo(io) => {
                let before = kinds.len() + process_events.len() + origins_written;
                async_ios.put(io, before, &mut tables);
                continue;
            }
            LayerEvent::ProcessContext(process) => {
                process_events.push(process_context::write(process, kinds.len(), &mut tables));
                continue;
            }
            LayerEvent::VirtualMachine(machine) => {
                virtual_machine_events.push(virtual_machine::write(machine, written - 1));
                continue;
            }
            LayerEvent::PageOrigin(origin) => {
                page_origins.put(origin, kinds.len() + process_events.len(), &mut tables);
                origins_written += 1;
                continue;
            }
            LayerEvent::Fault(fault) => {
                faults.put(fault, written - 1, &mut tables);
                continue;
            }
            LayerEvent::Dirty(_) => continue,
        };
        times.push(time.encode(event.time().0));
        kinds.push(kind.into());
    }
    let (task_events, file_events, device_events) = names.end();
    let tasks = tables.tasks_message();
    let (files, file_names) = (tables.files_message(), tables.file_names());
    let syscalls = tables.syscall_messages();
    let devices = tables.devices.values().to_vec();
    let contexts = tables.contexts_message();
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
        syscalls,
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
        page_origin_events: page_origins.end(),
        async_io_events: async_ios.end(),
        fault_events: faults.end(),
        file_names,
        virtual_machine_events,
    };
    message.encode_to_vec()
}
