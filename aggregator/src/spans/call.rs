//! Spans of a system call: the call, its file system, its bios and requests, and a commit that it
//! shows.

use std::borrow::Cow;
use std::sync::Arc;

use blkkin_wire::call_sleeps::CallSleeps;
use blkkin_wire::call_waits::LongestWait;
use blkkin_wire::event::{Captured, ContextSource, OpenFile, SyscallEvent, SyscallOutcome};
use blkkin_wire::ids::SpanId;
use blkkin_wire::span::{Span, SpanKind, SpanLink, TagValue};
use blkkin_wire::syscalls::errno_of;

use super::placement::{SpanHeader, SpanPlacement};
use super::process_tags::{process_tags, thread_tags};
use super::tags::Tags;
use super::{block, error, head_sampling, names};
use crate::latency;
use crate::trace::interned_file::{InternedFile, inode};
use crate::trace::page_cache::CachedRead;
use crate::trace::{Root, Trace, WaitLink};

/// Adds the spans of a call's trace.
pub(super) fn add(trace: &Trace, call: &SyscallEvent, spans: &mut Vec<Span>) {
    let mut placement = SpanPlacement::of(trace);
    spans.push(call_span(&placement, call));
    if let Some(name) = names::file_system_between(trace, call) {
        let child = file_system_span(&placement, call, name);
        placement.bio_parent = child.id;
        spans.push(child);
    }
    block::add(&placement, spans);
    // Commits are not sampled.
    head_sampling::add(call.sampling, spans);
    for wait in trace.waited_for.iter().filter(|wait| wait.primary) {
        let commit = &*wait.trace;
        let commit_placement = SpanPlacement {
            trace: commit,
            parent: Some(placement.bio_parent),
            bio_parent: commit.root_span,
            ..placement
        };
        if let Root::Commit(event) = &commit.root {
            super::commit::add(&commit_placement, event, spans);
        }
    }
}

fn call_span(placement: &SpanPlacement<'_>, call: &SyscallEvent) -> Span {
    let trace = placement.trace;
    let header = SpanHeader {
        id: call.span,
        parent: call.context.as_ref().map(|context| context.span),
        name: call.call.name().into(),
        service: names::program(&trace.names),
        kind: SpanKind::Client,
        start: call.enter,
        end: call.exit,
    };
    let mut span = placement.span(header);
    span.remote_service = names::file_system(&trace.names).cloned();
    let errno = match call.outcome {
        SyscallOutcome::Returned(ret) => errno_of(ret),
        SyscallOutcome::NoExit => None,
    };
    span.error = errno.map(error::of_errno);
    span.links = trace.waited_for.iter().filter(|wait| !wait.primary).map(link_to).collect();
    span.links.extend(log_link(call));
    let mut tags = Tags::of_a_call();
    if let Some(context) = &call.context {
        let link = match context.source {
            ContextSource::ThreadContext => "exact: the thread's own context named this span (OpenTelemetry)",
            ContextSource::Both => "exact: the thread's own context named this daemon span (OpenTelemetry)",
            ContextSource::DaemonSpan => {
                "rule: the thread's last event before the call entered this daemon span"
            }
        };
        tags.text("blkkin.parent.evidence", link);
    }
    process_tags(trace, &mut tags);
    thread_tags(trace, &mut tags);
    file_tags(trace, call, &mut tags);
    result_tags(call, errno, &mut tags);
    time_tags(trace, call, &mut tags);
    placement.root_tags(&mut tags);
    span.tags = tags.0;
    span
}

fn file_system_span(placement: &SpanPlacement<'_>, call: &SyscallEvent, name: &Arc<str>) -> Span {
    let mut span = placement.span(SpanHeader {
        id: names::file_system_span(call.span),
        parent: Some(call.span),
        name: names::operation(call.call),
        service: name.clone(),
        kind: SpanKind::Server,
        start: call.enter,
        end: call.exit,
    });
    let link = "derived: the call's file lies on this file system; the times are the call's";
    span.tags = vec![("blkkin.parent.evidence".into(), TagValue::Text(Cow::Borrowed(link)))];
    span
}

fn file_tags(trace: &Trace, call: &SyscallEvent, tags: &mut Tags) {
    if let Some(file) = &trace.names.file {
        tags.shared("file.path", file.shown_path());
        captured_tag("blkkin.file.path.captured", file.captured, tags);
    }
    let keys = ["blkkin.fd", "blkkin.inode", "blkkin.position.before", "blkkin.position.after"];
    open_file_tags(keys, call.file.as_ref(), trace.names.file.as_deref(), tags);
    if let Some(file) = &trace.names.second_file {
        tags.shared("blkkin.second.file.path", file.shown_path());
    }
    let keys = ["blkkin.second.fd", "blkkin.second.inode", "blkkin.second.before", "blkkin.second.after"];
    open_file_tags(keys, call.second_file.as_deref(), trace.names.second_file.as_deref(), tags);
    for (key, path) in ["blkkin.path", "blkkin.path.second"].into_iter().zip(&call.paths) {
        if let Some(path) = path {
            tags.owned(key, &**path);
        }
    }
    captured_tag("blkkin.path.captured", call.paths_captured, tags);
    tags.maybe("blkkin.offset", call.call.spec().offset(&call.args));
    tags.maybe("blkkin.bytes.requested", call.call.spec().requested_bytes(&call.args));
    if let Some(read) = CachedRead::of(trace).filter(|_| call.bios > 0) {
        tags.number("blkkin.page_cache.fetched", read.fetched);
        tags.number("blkkin.page_cache.read_ahead", read.read_ahead);
    }
}

fn open_file_tags(
    keys: [&'static str; 4],
    open: Option<&OpenFile>,
    named: Option<&InternedFile>,
    tags: &mut Tags,
) {
    let Some(open) = open else { return };
    tags.number(keys[0], open.fd.0);
    match named {
        Some(named) if named.file == open.file => tags.shared(keys[1], named.inode()),
        _ => tags.owned(keys[1], inode(&open.file)),
    }
    tags.maybe(keys[2], open.position_before);
    tags.maybe(keys[3], open.position_after);
}

fn captured_tag(key: &'static str, captured: Captured, tags: &mut Tags) {
    match captured {
        Captured::Full => {}
        Captured::Truncated => tags.text(key, "truncated"),
        Captured::Faulted => tags.text(key, "unreadable"),
    }
}

fn result_tags(call: &SyscallEvent, errno: Option<i32>, tags: &mut Tags) {
    match call.outcome {
        SyscallOutcome::Returned(ret) => {
            tags.number("blkkin.return", ret);
            tags.maybe("blkkin.bytes", call.call.spec().bytes(ret));
        }
        SyscallOutcome::NoExit => tags.text("blkkin.incomplete", "the task ended inside the call"),
    }
    if let Some(errno) = errno {
        tags.owned("error.type", error::kind(errno));
    }
}

fn time_tags(trace: &Trace, call: &SyscallEvent, tags: &mut Tags) {
    tags.times(call.enter, call.exit);
    let parts = latency::breakdown(trace);
    tags.duration("blkkin.device.ns", parts.device);
    tags.duration("blkkin.block.ns", parts.block);
    tags.duration("blkkin.journal.ns", parts.journal);
    tags.duration("blkkin.lock_wait.ns", parts.locks);
    tags.duration("blkkin.throttled.ns", parts.throttled);
    tags.duration("blkkin.cpu_wait.ns", parts.cpu);
    tags.duration("blkkin.file_system.ns", parts.file_system);
    tags.duration("blkkin.unaccounted.ns", parts.unaccounted);
    tags.number("blkkin.sleeps", call.sleeps);
    if let Some(waits) = &call.waits {
        longest_wait_tags(&waits.longest, tags);
    }
    if let Some(slept) = &call.slept {
        sleep_tags(slept, tags);
    }
    tags.maybe("blkkin.journal.transaction", call.sync_tid);
}

/// Tags of the places where a call slept: function, callers, time and number.
const SLEEP_TAGS: [[&str; 4]; 4] = [
    ["blkkin.sleep.0", "blkkin.sleep.0.callers", "blkkin.sleep.0.duration.ns", "blkkin.sleep.0.count"],
    ["blkkin.sleep.1", "blkkin.sleep.1.callers", "blkkin.sleep.1.duration.ns", "blkkin.sleep.1.count"],
    ["blkkin.sleep.2", "blkkin.sleep.2.callers", "blkkin.sleep.2.duration.ns", "blkkin.sleep.2.count"],
    ["blkkin.sleep.3", "blkkin.sleep.3.callers", "blkkin.sleep.3.duration.ns", "blkkin.sleep.3.count"],
];

/// Adds the places where a call slept, the longest time first.
fn sleep_tags(slept: &CallSleeps, tags: &mut Tags) {
    for ([function, callers, duration, count], place) in SLEEP_TAGS.into_iter().zip(slept.by_time()) {
        tags.owned(function, place.function());
        if !place.callers().is_empty() {
            tags.owned(callers, place.callers().join(" < "));
        }
        tags.number(duration, place.time.0);
        tags.number(count, place.count);
    }
    if slept.others > 0 {
        tags.number("blkkin.sleep.others.duration.ns", slept.others_time.0);
        tags.number("blkkin.sleep.others.count", slept.others);
    }
    if slept.unended > 0 {
        tags.number("blkkin.sleep.unended", slept.unended);
    }
}

/// Adds the longest wait of the call, and the task that held the lock.
fn longest_wait_tags(longest: &LongestWait, tags: &mut Tags) {
    tags.text("blkkin.wait.longest", longest.kind.name());
    tags.number("blkkin.wait.longest.start.ns", longest.begin.0);
    tags.number("blkkin.wait.longest.duration.ns", longest.time.0);
    if let Some(holder) = &longest.holder {
        tags.shared("blkkin.wait.holder.thread.name", &holder.comm);
        tags.number("blkkin.wait.holder.pid", holder.pid.0);
        tags.number("blkkin.wait.holder.thread.id", holder.tid.0);
    }
}

/// Returns the link to the write of the log for which the call waited, unless it submitted that itself.
fn log_link(call: &SyscallEvent) -> Option<SpanLink> {
    let write =
        call.waits.as_ref()?.log_write.filter(|write| write.trace.0 != 0 && write.root != call.span)?;
    let relation = "waited_for (identity: the log's buffer on which the call slept)".into();
    Some(SpanLink { trace: write.trace, span: write.span, relation })
}

/// Returns the link to the trace in which the commit is shown.
fn link_to(wait: &WaitLink) -> SpanLink {
    let trace = wait.trace.shown_in.map_or(wait.trace.id, |position| position.trace);
    let span: SpanId = wait.trace.root_span;
    SpanLink { trace, span, relation: "waited_for (rule: ext4 transaction id)".into() }
}
