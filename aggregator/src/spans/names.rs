//! Names of services and operations, and the id of the derived file system span.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::{DeviceId, NodeId, SpanId};
use blkkin_wire::syscalls::{SyscallClass, SyscallId};

use crate::latency::io_kind::has_store;
use crate::trace::interned_file::InternedFile;
use crate::trace::{DeviceNames, Names, Trace};

/// The block layer as a service.
pub(super) static BLOCK: LazyLock<Arc<str>> = LazyLock::new(|| "block".into());
/// The kernel's writing of dirty pages as a service.
pub(super) static WRITE_BACK: LazyLock<Arc<str>> = LazyLock::new(|| "write-back".into());
/// The kernel as a client.
static KERNEL: LazyLock<Arc<str>> = LazyLock::new(|| "kernel".into());
/// A program without a known name.
static UNKNOWN: LazyLock<Arc<str>> = LazyLock::new(|| "unknown program".into());
/// The journal of ext4 as a service.
pub(super) static JOURNAL: LazyLock<Arc<str>> = LazyLock::new(|| "jbd2".into());

/// Returns the program as a service: the name of its executable or, if unknown, its comm.
pub(super) fn program(names: &Names) -> Arc<str> {
    let exe = names.exe.as_ref().map(|exe| exe.base());
    let comm = names.task.as_ref().map(|task| &task.comm);
    exe.or(comm).filter(|name| !name.is_empty()).unwrap_or(&UNKNOWN).clone()
}

/// Returns the client of I/O without a call: the program whose pages are read or written, or the
/// kernel (write-back, metadata). All kernel threads share one name, since theirs contain numbers.
pub(super) fn client_service(names: &Names) -> Option<Arc<str>> {
    let task = names.task.as_ref()?;
    Some(if task.kernel_thread { KERNEL.clone() } else { program(names) })
}

/// Returns a node's id as text. Successive traces come from the same node, so the last text is
/// cached.
pub(super) fn host(node: NodeId) -> Arc<str> {
    thread_local! {
        static LAST: RefCell<Option<(NodeId, Arc<str>)>> = const { RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| match last {
        Some((known, words)) if *known == node => words.clone(),
        _ => last.insert((node, format!("{:032x}", node.0).into())).1.clone(),
    })
}

/// Returns a device's name, or its number if it has no known name.
pub(super) fn device(devices: &DeviceNames, device: DeviceId) -> Arc<str> {
    devices.names.get(&device).cloned().unwrap_or_else(|| device.to_string().into())
}

/// Returns the file system that the call used. None for a device file and for a file system without
/// a store: the service graph would show every program connected to pipes.
pub(super) fn file_system(names: &Names) -> Option<&Arc<str>> {
    file_system_of(names.file.as_ref())
}

/// Returns the file system of a file, likewise.
pub(super) fn file_system_of(file: Option<&Arc<InternedFile>>) -> Option<&Arc<str>> {
    let file = file.filter(|file| file.device_file.is_none())?;
    Some(&file.filesystem).filter(|name| !name.is_empty() && has_store(name))
}

/// Returns the file system to show between the call and its I/O. A call with two files has one only
/// if both are on it: no record shows which of the two a bio was for.
pub(super) fn file_system_between<'a>(trace: &'a Trace, call: &SyscallEvent) -> Option<&'a Arc<str>> {
    let name = file_system(&trace.names)?;
    let second = trace.names.second_file.as_ref().map(|file| &file.filesystem);
    let both = call.second_file.is_none() || second == Some(name);
    let io = !trace.bios.is_empty() || trace.waited_for.iter().any(|cause| cause.primary);
    (io && both).then_some(name)
}

/// Returns the name of a file system's operation. Reads and writes have one name each, other calls
/// the name without the number of their variant.
pub(super) fn operation(call: SyscallId) -> Cow<'static, str> {
    match call.spec().class {
        SyscallClass::Read => "read".into(),
        SyscallClass::Write => "write".into(),
        SyscallClass::Open => "open".into(),
        _ => call.name().trim_end_matches(|c: char| c.is_ascii_digit()).into(),
    }
}

/// Returns the id of the file system's span of call `call`: splitmix64's finalizer of the call's
/// id. It is a bijection, so two calls never share one. A collision with another span's id is as
/// likely as for any two random 64-bit ids.
pub(super) fn file_system_span(call: SpanId) -> SpanId {
    let mut z = call.0 ^ 0x6669_6c65_7379_7374;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    // Zero is not a valid span id (W3C trace context). The one call that would give it takes its
    // own complement.
    SpanId(if z == 0 { !call.0 } else { z })
}
