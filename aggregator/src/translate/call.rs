//! The call's span, its file system's, and what hangs below.

use std::borrow::Cow;
use std::sync::Arc;

use blkkin_wire::event::{Captured, ContextSource, OpenFile, SyscallEvent, SyscallOutcome};
use blkkin_wire::ids::SpanId;
use blkkin_wire::span::{Span, SpanKind, SpanLink, TagValue};
use blkkin_wire::syscalls::errno_of;

use super::place::{Outline, Place};
use super::tags::Tags;
use super::{application, block, error, names};
use crate::account;
use crate::named::{NamedFile, inode};
use crate::trace::{Cause, Root, Trace};

/// Adds the spans of a call's trace.
pub(super) fn add(trace: &Trace, call: &SyscallEvent, spans: &mut Vec<Span>) {
    let mut place = Place::of(trace);
    spans.push(call_span(&place, call));
    if let Some(name) = names::file_system_between(trace, call) {
        let below = file_system_span(&place, call, name);
        place.bios_below = below.id;
        spans.push(below);
    }
    block::add(&place, spans);
    for cause in trace.causes.iter().filter(|cause| cause.primary) {
        let commit = &*cause.trace;
        let adopted =
            Place { trace: commit, parent: Some(place.bios_below), bios_below: commit.root_span, ..place };
        if let Root::Commit(event) = &commit.root {
            super::commit::add(&adopted, event, spans);
        }
    }
}

fn call_span(place: &Place<'_>, call: &SyscallEvent) -> Span {
    let trace = place.trace;
    let outline = Outline {
        id: call.span,
        parent: call.context.as_ref().map(|context| context.span),
        name: call.call.name().into(),
        service: names::program(&trace.names),
        kind: SpanKind::Client,
        start: call.enter,
        end: call.exit,
    };
    let mut span = place.span(outline);
    span.remote_service = names::file_system(&trace.names).cloned();
    let errno = match call.outcome {
        SyscallOutcome::Returned(ret) => errno_of(ret),
        SyscallOutcome::NoExit => None,
    };
    span.error = errno.map(error::of_errno);
    span.links = trace.causes.iter().filter(|cause| !cause.primary).map(link_to).collect();
    let mut tags = Tags::of_a_call();
    if let Some(context) = &call.context {
        let link = match context.source {
            ContextSource::ThreadContext => "exact: the thread's own context named this span (OpenTelemetry)",
            ContextSource::Both => "exact: the thread's own context named this operation (OpenTelemetry)",
            ContextSource::DaemonSpan => {
                "rule: the thread's last event before it said that it works for this operation"
            }
        };
        tags.text("blkkin.link", link);
    }
    process_tags(trace, &mut tags);
    application::thread_tags(trace, &mut tags);
    file_tags(trace, call, &mut tags);
    result_tags(call, errno, &mut tags);
    time_tags(trace, call, &mut tags);
    place.root_tags(&mut tags);
    span.tags = tags.0;
    span
}

fn file_system_span(place: &Place<'_>, call: &SyscallEvent, name: &Arc<str>) -> Span {
    let mut span = place.span(Outline {
        id: names::file_system_span(call.span),
        parent: Some(call.span),
        name: names::operation(call.call),
        service: name.clone(),
        kind: SpanKind::Server,
        start: call.enter,
        end: call.exit,
    });
    let link = "derived: the call's file lies on this file system; the times are the call's";
    span.tags = vec![("blkkin.link".into(), TagValue::Text(Cow::Borrowed(link)))];
    span
}

/// Who called. Also for what the kernel's tasks began.
pub(super) fn process_tags(trace: &Trace, tags: &mut Tags) {
    if let Some(exe) = &trace.names.exe {
        tags.shared("process.executable.name", exe.base());
        tags.shared("process.executable.path", &exe.path);
    }
    let Some(task) = &trace.names.task else { return };
    tags.number("process.pid", task.pid.0);
    tags.number("process.parent_pid", task.ppid.0);
    tags.number("thread.id", task.tid.0);
    tags.shared("thread.name", &task.comm);
    // Of the two that a credential has the real one (`cred.uid`).
    tags.number("process.real_user.id", task.uid.0);
    tags.number("blkkin.cgroup", task.cgroup.0);
    application::process_tags(trace, tags);
}

fn file_tags(trace: &Trace, call: &SyscallEvent, tags: &mut Tags) {
    if let Some(file) = &trace.names.file {
        tags.shared("file.path", &file.path);
        kept_tag("blkkin.file.path.kept", file.captured, tags);
    }
    let keys = ["blkkin.fd", "blkkin.inode", "blkkin.position.before", "blkkin.position.after"];
    open_file_tags(keys, call.file.as_ref(), trace.names.file.as_deref(), tags);
    if let Some(file) = &trace.names.second_file {
        tags.shared("blkkin.second.file.path", &file.path);
    }
    let keys = ["blkkin.second.fd", "blkkin.second.inode", "blkkin.second.before", "blkkin.second.after"];
    open_file_tags(keys, call.second_file.as_deref(), trace.names.second_file.as_deref(), tags);
    for (key, path) in ["blkkin.path", "blkkin.path.second"].into_iter().zip(&call.paths) {
        if let Some(path) = path {
            tags.owned(key, &**path);
        }
    }
    kept_tag("blkkin.path.kept", call.paths_captured, tags);
    tags.maybe("blkkin.offset", call.call.spec().offset(&call.args));
    tags.maybe("blkkin.bytes.requested", call.call.spec().requested_bytes(&call.args));
}

fn open_file_tags(
    keys: [&'static str; 4],
    open: Option<&OpenFile>,
    named: Option<&NamedFile>,
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

fn kept_tag(key: &'static str, kept: Captured, tags: &mut Tags) {
    match kept {
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
    let parts = account::breakdown(trace);
    tags.duration("blkkin.device.ns", parts.device);
    tags.duration("blkkin.block.ns", parts.block);
    tags.duration("blkkin.journal.ns", parts.journal);
    tags.duration("blkkin.cpu_wait.ns", parts.cpu);
    tags.duration("blkkin.file_system.ns", parts.file_system);
    tags.duration("blkkin.unaccounted.ns", parts.unaccounted);
    tags.number("blkkin.sleeps", call.sleeps);
    tags.maybe("blkkin.journal.transaction", call.sync_tid);
}

/// To where a commit is shown that this call waited for too.
fn link_to(cause: &Cause) -> SpanLink {
    let trace = cause.trace.adopted_by.map_or(cause.trace.id, |adoption| adoption.trace);
    let span: SpanId = cause.trace.root_span;
    SpanLink { trace, span, relation: "waited for this commit (rule: ext4 transaction id)".into() }
}
