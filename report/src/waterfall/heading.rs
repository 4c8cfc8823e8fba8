//! Heading of a waterfall: duration, call, file, task, start time, thread attributes.

use blkkin_aggregator::trace::thread_attributes::{self, ResolvedAttributes};
use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{Captured, FaultEvent, SyscallEvent, SyscallOutcome};
use blkkin_wire::syscalls::{Arch, Invocation};

use super::async_io;
use super::draw::MARGIN;
use crate::collect::files;
use crate::text::line::{Line, sanitize, width};
use crate::text::style::Ink;
use crate::text::{shorten, units};

/// Returns two to five lines.
pub fn lines(rank: usize, trace: &Trace, arch: Arch, started: MonotonicNs, columns: usize) -> Vec<Line> {
    let mut lines = Vec::with_capacity(3);
    let mut first = Line::of(format!("{rank:>2}  {}  ", units::duration(trace.duration())), Ink::Bold);
    if let Some(call) = trace.call() {
        first.push(invocation(call, arch), call_ink(call));
        if call.paths_captured != Captured::Full {
            first.push(" (path cut)", Ink::Alarm);
        }
        if let Some(path) = files::path(trace, call) {
            lines.extend(with_path(first, &format!("on {}", sanitize(&path)), columns));
        } else {
            lines.push(first);
        }
    } else if let Root::Fault(fault) = &trace.root {
        lines.extend(fault_lines(first, trace, fault, columns));
    } else if let Some(io) = trace.root_async_io() {
        first.push(async_io::label(&io.event), Ink::Bold);
        lines.push(first);
        if let Some(file) = &io.file {
            let path = format!("on {}", sanitize(file.shown_path()));
            lines.push(path_line(&path, columns));
        }
    }
    // Readers search other tools for the trace id, so it is never cut.
    let task = task_and_start(trace, started);
    let id = format!("trace {}", trace.id);
    let both = format!("{task} · {id}");
    let texts = if MARGIN + width(&both) <= columns { vec![both] } else { vec![task, id] };
    lines.extend(texts.iter().map(|text| indented(text, Ink::Dim)));
    if let Some(attributes) = thread_attributes::resolve(trace) {
        lines.push(indented(
            &shorten::end(&attributes_line(&attributes), columns.saturating_sub(MARGIN)),
            Ink::Dim,
        ));
    }
    lines
}

/// Returns the name of an operation, and its file if that is known.
pub fn name(trace: &Trace) -> (&'static str, Option<String>) {
    if let Some(call) = trace.call() {
        return (call.call.name(), files::path(trace, call).map(|path| path.into_owned()));
    }
    if let Some(io) = trace.root_async_io() {
        return (io.event.operation().name, io.file.as_ref().map(|file| file.shown_path().to_string()));
    }
    ("page fault", trace.names.file.as_ref().map(|file| file.shown_path().to_string()))
}

/// Formats a page fault: its address, and the mapped file with the page's offset.
fn fault_lines(mut first: Line, trace: &Trace, fault: &FaultEvent, columns: usize) -> Vec<Line> {
    let address = fault.address.map(|address| format!(" at {address:#x}")).unwrap_or_default();
    first.push(format!("page fault{address}"), Ink::Bold);
    let Some(file) = &trace.names.file else { return vec![first] };
    let path = sanitize(file.shown_path());
    let offset = fault.offset.map(|offset| format!(" + {offset:#x}")).unwrap_or_default();
    with_path(first, &format!("on {path}{offset}"), columns)
}

/// Returns the first line with the path behind it if it fits, else on the next line.
fn with_path(mut first: Line, path: &str, columns: usize) -> Vec<Line> {
    if first.width() + 2 + width(path) <= columns {
        first.push(format!("  {path}"), Ink::Plain);
        return vec![first];
    }
    vec![first, path_line(path, columns)]
}

/// Returns a line of its own for a path.
fn path_line(path: &str, columns: usize) -> Line {
    indented(&shorten::path(path, columns.saturating_sub(MARGIN)), Ink::Plain)
}

/// Formats the thread attributes of the call.
fn attributes_line(attributes: &ResolvedAttributes<'_>) -> String {
    let value = |(name, value): &(&str, &str)| format!("{}={}", sanitize(name), sanitize(value));
    let dropped = (attributes.dropped_attributes_count > 0)
        .then(|| format!("{} more not shown", attributes.dropped_attributes_count));
    let unread = (attributes.bytes_unread > 0).then(|| format!("{} bytes not read", attributes.bytes_unread));
    let parts: Vec<String> = attributes.values.iter().map(value).chain(dropped).chain(unread).collect();
    format!("for {}", parts.join(" · "))
}

/// Formats the call with its arguments and result.
pub fn invocation(call: &SyscallEvent, arch: Arch) -> String {
    let ret = match call.outcome {
        SyscallOutcome::Returned(ret) => Some(ret),
        SyscallOutcome::NoExit => None,
    };
    let texts = [call.paths[0].as_deref(), call.paths[1].as_deref()];
    let text = Invocation { call: call.call, arch, args: &call.args, ret, texts }.to_string();
    match ret {
        Some(_) => sanitize(&text),
        None => format!("{} (no exit seen)", sanitize(&text)),
    }
}

fn call_ink(call: &SyscallEvent) -> Ink {
    match call.outcome {
        SyscallOutcome::Returned(ret) if blkkin_wire::syscalls::errno_of(ret).is_none() => Ink::Bold,
        _ => Ink::Alarm,
    }
}

fn task_and_start(trace: &Trace, started: MonotonicNs) -> String {
    let task = trace.names.task.as_ref().map_or_else(
        || "unknown task".to_owned(),
        |task| {
            let thread =
                if task.tid.0 == task.pid.0 { String::new() } else { format!(" · tid {}", task.tid.0) };
            let machine = trace.names.virtual_machine().map(|machine| machine.shown_name());
            let machine = machine.map(|name| format!(" · VM {}", sanitize(name))).unwrap_or_default();
            format!("{} · pid {}{thread}{machine}", sanitize(&task.comm), task.pid.0)
        },
    );
    format!("{task} · {}", after_start(trace, started))
}

/// Formats the time of a trace's begin in microseconds, because readers search other tools for it.
pub(super) fn after_start(trace: &Trace, started: MonotonicNs) -> String {
    let micros = trace.start().since(started).0 / 1_000;
    format!("{}.{:06} s after the start", micros / 1_000_000, micros % 1_000_000)
}

fn indented(text: &str, ink: Ink) -> Line {
    Line::of(" ".repeat(MARGIN), Ink::Plain).with(text, ink)
}
