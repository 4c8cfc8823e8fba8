//! What things are called, and the id of the one span that has no event.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::{DeviceId, NodeId, SpanId};
use blkkin_wire::syscalls::{SyscallClass, SyscallId};

use crate::account::subject::has_store;
use crate::trace::{DeviceNames, Names, Trace};

/// The block layer as a service.
pub(super) static BLOCK: LazyLock<Arc<str>> = LazyLock::new(|| "block".into());
/// The kernel's own work as who asks.
static KERNEL: LazyLock<Arc<str>> = LazyLock::new(|| "kernel".into());
/// A program of which nothing was said.
static UNKNOWN: LazyLock<Arc<str>> = LazyLock::new(|| "unknown program".into());
/// ext4's journal as a service.
pub(super) static JOURNAL: LazyLock<Arc<str>> = LazyLock::new(|| "jbd2".into());

/// The program as a service: its file's name; without one its task's name.
pub(super) fn program(names: &Names) -> Arc<str> {
    let exe = names.exe.as_ref().map(|exe| exe.base());
    let comm = names.task.as_ref().map(|task| &task.comm);
    exe.or(comm).filter(|name| !name.is_empty()).unwrap_or(&UNKNOWN).clone()
}

/// Who asked for what no call asked for: a program whose pages are read or written behind its back, or the kernel by itself
/// (write-back, metadata). One name for all its threads: theirs have numbers in them.
pub(super) fn asker(names: &Names) -> Option<Arc<str>> {
    let task = names.task.as_ref()?;
    Some(if task.kernel_thread { KERNEL.clone() } else { program(names) })
}

/// A node's number as its traces say it. Traces of one node come one behind the other, so the last one's is kept at hand.
pub(super) fn host(node: NodeId) -> Arc<str> {
    thread_local! {
        static LAST: RefCell<Option<(NodeId, Arc<str>)>> = const { RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| match last {
        Some((known, words)) if *known == node => words.clone(),
        _ => last.insert((node, format!("{:032x}", node.0).into())).1.clone(),
    })
}

/// A device by name; by number if it was never named.
pub(super) fn device(devices: &DeviceNames, device: DeviceId) -> Arc<str> {
    devices.0.get(&device).cloned().unwrap_or_else(|| device.to_string().into())
}

/// The file system that the call asked: that of its file, unless that stands for a device, or the file system has no
/// store: a graph of who depends on whom would show every program at a pipe.
pub(super) fn file_system(names: &Names) -> Option<&Arc<str>> {
    let file = names.file.as_ref().filter(|file| file.device_file.is_none())?;
    Some(&file.filesystem).filter(|name| !name.is_empty() && has_store(name))
}

/// The file system to show between the call and its I/O. A call with two files has one only if both lie on it:
/// nobody knows which of the two a bio was for.
pub(super) fn file_system_between<'a>(trace: &'a Trace, call: &SyscallEvent) -> Option<&'a Arc<str>> {
    let name = file_system(&trace.names)?;
    let second = trace.names.second_file.as_ref().map(|file| &file.filesystem);
    let both = call.second_file.is_none() || second == Some(name);
    let io = !trace.bios.is_empty() || trace.causes.iter().any(|cause| cause.primary);
    (io && both).then_some(name)
}

/// What the file system was asked for: reads and writes by one name each, others without the number of their
/// variant.
pub(super) fn operation(call: SyscallId) -> Cow<'static, str> {
    match call.spec().class {
        SyscallClass::Read => "read".into(),
        SyscallClass::Write => "write".into(),
        SyscallClass::Open => "open".into(),
        _ => call.name().trim_end_matches(|c: char| c.is_ascii_digit()).into(),
    }
}

/// The id of the file system's span below call `call`: splitmix64's finalizer over it, a bijection, so that two calls
/// never share one. That it meets another span's id is as likely as for any two random ids of 64 bits.
pub(super) fn file_system_span(call: SpanId) -> SpanId {
    let mut z = call.0 ^ 0x6669_6c65_7379_7374;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    // Zero is no span id (W3C trace context); the one call that would give it takes its own complement.
    SpanId(if z == 0 { !call.0 } else { z })
}
