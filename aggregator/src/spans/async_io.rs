//! Spans of asynchronous I/O: the submission, and its file system.

use std::sync::Arc;

use blkkin_wire::async_io::{AsyncDescriptor, AsyncDirection, AsyncInterface, AsyncIoEvent, AsyncIoOutcome};
use blkkin_wire::ids::SpanId;
use blkkin_wire::span::{Span, SpanKind, TagValue};

use super::placement::{SpanHeader, SpanPlacement};
use super::process_tags::process_tags;
use super::tags::Tags;
use super::{error, names};
use crate::latency::async_io::SubmissionTimes;
use crate::trace::Root;
use crate::trace::async_io::AsyncIo;
use crate::trace::id_map::SpanMap;

/// Adds the spans of a trace's submissions, and returns the parent of each one's bios.
pub(super) fn add(placement: &SpanPlacement<'_>, spans: &mut Vec<Span>) -> SpanMap<SpanId> {
    let mut bio_parents = SpanMap::default();
    if placement.trace.async_ios.is_empty() {
        return bio_parents;
    }
    let times = SubmissionTimes::of(placement.trace);
    for io in &placement.trace.async_ios {
        spans.push(submission_span(placement, io, &times));
        let mut bio_parent = io.event.span;
        if let Some(name) = file_system(io).filter(|_| io.event.bios > 0) {
            let child = file_system_span(placement, &io.event, name);
            bio_parent = child.id;
            spans.push(child);
        }
        bio_parents.insert(io.event.span, bio_parent);
    }
    bio_parents
}

/// Returns the file system of the submission's file. None for a device file.
fn file_system(io: &AsyncIo) -> Option<&Arc<str>> {
    names::file_system_of(io.file.as_ref())
}

fn submission_span(placement: &SpanPlacement<'_>, io: &AsyncIo, times: &SubmissionTimes<'_>) -> Span {
    let (trace, event) = (placement.trace, &io.event);
    let mut span = placement.span(SpanHeader {
        id: event.span,
        parent: event.submitter,
        name: event.operation().name.into(),
        service: names::program(&trace.names),
        kind: SpanKind::Client,
        start: event.start,
        end: event.end,
    });
    span.remote_service = file_system(io).cloned();
    span.annotations = event
        .queued
        .map(|queued| (placement.anchor.wallclock(queued), "queued for a worker".into()))
        .into_iter()
        .collect();
    let mut tags = Tags::of_a_call();
    if event.submitter.is_some() {
        tags.text("blkkin.parent.evidence", "exact: the task was inside the call");
    } else {
        process_tags(trace, &mut tags);
    }
    file_tags(io, &mut tags);
    submission_tags(event, &mut tags);
    let errno = event.errno();
    span.error = errno.map(error::of_errno);
    if let Some(errno) = errno {
        tags.owned("error.type", error::kind(errno));
    }
    tags.times(event.start, event.end);
    let (device, block) = times.device_and_block(event);
    tags.duration("blkkin.device.ns", device);
    tags.duration("blkkin.block.ns", block);
    if event.submitter.is_none() {
        placement.root_tags(&mut tags);
    } else if let (Some(call), Root::Missing) = (event.submitter, &trace.root) {
        tags.owned("blkkin.missing.parent", call.to_string());
        placement.root_tags(&mut tags);
    }
    span.tags = tags.0;
    span
}

fn file_tags(io: &AsyncIo, tags: &mut Tags) {
    if let Some(file) = &io.file {
        tags.shared("file.path", file.shown_path());
        tags.shared("blkkin.inode", file.inode());
    }
    match io.event.descriptor {
        Some(AsyncDescriptor::Descriptor(fd)) => tags.number("blkkin.fd", fd),
        Some(AsyncDescriptor::Registered(index)) => tags.number("blkkin.registered_file", index),
        None => {}
    }
    let direction = io.event.operation().direction.map(|direction| match direction {
        AsyncDirection::Read => "read",
        AsyncDirection::Write => "write",
    });
    if let Some(direction) = direction {
        tags.text("disk.io.direction", direction);
    }
}

fn submission_tags(event: &AsyncIoEvent, tags: &mut Tags) {
    // As text: a span's numbers are signed, and programs store pointers here.
    tags.owned("blkkin.user_data", format!("0x{:x}", event.user_data));
    tags.number("blkkin.operation", event.opcode);
    match event.offset {
        Some(-1) => tags.text("blkkin.offset", "the file's position"),
        offset => tags.maybe("blkkin.offset", offset),
    }
    tags.maybe("blkkin.bytes.requested", event.length);
    match event.outcome {
        AsyncIoOutcome::Returned(result) => tags.number("blkkin.return", result),
        AsyncIoOutcome::Ended => tags.text("blkkin.end", "exact: its last bio; the result is not recorded"),
        AsyncIoOutcome::NoEnd => tags.text(
            "blkkin.incomplete",
            "its completion was not seen: it ends where the kernel used its memory again",
        ),
    }
    tags.maybe("blkkin.bytes", event.bytes());
    tags.number("blkkin.bios", event.bios);
    tags.maybe("blkkin.queued.ns", event.queued.map(|queued| queued.since(event.start).0));
    if event.interface == AsyncInterface::IoUring {
        flag(event.is_submitted_by_poll_thread(), "blkkin.sqpoll", tags);
        flag(event.is_polled(), "blkkin.iopoll", tags);
        flag(event.is_linked(), "blkkin.linked", tags);
    }
}

fn flag(is_set: bool, key: &'static str, tags: &mut Tags) {
    if is_set {
        tags.text(key, "true");
    }
}

fn file_system_span(placement: &SpanPlacement<'_>, event: &AsyncIoEvent, name: &Arc<str>) -> Span {
    let operation = match event.operation().direction {
        Some(AsyncDirection::Read) => "read",
        Some(AsyncDirection::Write) => "write",
        None => event.operation().name.split(' ').next_back().unwrap_or("operation"),
    };
    let mut span = placement.span(SpanHeader {
        id: names::file_system_span(event.span),
        parent: Some(event.span),
        name: operation.into(),
        service: name.clone(),
        kind: SpanKind::Server,
        start: event.start,
        end: event.end,
    });
    let link = "derived: the submission's file lies on this file system; the times are the submission's";
    span.tags = vec![("blkkin.parent.evidence".into(), TagValue::Text(link.into()))];
    span
}
