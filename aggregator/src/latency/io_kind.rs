//! Classifies a call as storage I/O or not.
//!
//! *In*: a call's trace. *Out*: [`IoKind`].
//!
//! *Invariant*: in doubt it is storage. A wait too many in a table is better than a slow request
//! hidden. A call with I/O is storage whatever its file is, and so is a call whose file is not
//! known.
//!
//! *Rejected*: the file's type alone. `proc` and `sysfs` hold regular files, and a mapping of plain
//! memory is a call without a file: the report would blame a file system for all of its time.

use blkkin_wire::event::{FileEvent, SyscallEvent};
use blkkin_wire::syscalls::SyscallClass;

use crate::trace::Trace;

/// Kind of a call's I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoKind {
    /// A file, a directory, a block device, or an unknown file.
    Storage,
    /// A pipe, a socket, a character device, a file of a file system without a store, plain memory,
    /// or the execution of a program with cached pages.
    NotStorage,
}

impl IoKind {
    /// Classifies the call of `trace`. A trace without a call is storage.
    pub fn of(trace: &Trace) -> IoKind {
        let Some(call) = trace.call() else { return IoKind::Storage };
        let has_io = call.bios > 0 || !trace.bios.is_empty() || !trace.waited_for.is_empty();
        // Calls of asynchronous I/O have a file of their own kind and act on other files.
        if has_io || call.call.spec().class == SyscallClass::Async {
            return IoKind::Storage;
        }
        // Without a read of its pages, an execution is the kernel's memory management.
        if call.call.spec().class == SyscallClass::Execute {
            return IoKind::NotStorage;
        }
        let elsewhere = match (&trace.names.file, &trace.names.second_file) {
            // Data that moves from a pipe to a file is written there.
            (Some(file), second) => {
                !is_storage(file) && !second.as_deref().is_some_and(|file| is_storage(file))
            }
            (None, _) => is_plain_memory(call),
        };
        if elsewhere { IoKind::NotStorage } else { IoKind::Storage }
    }
}

/// File systems without a store, by the kernel's name of their type. `tmpfs` and `ramfs` are not
/// among them: their files hold what programs wrote. Neither are `efivarfs` and `pstore`, which
/// keep data in a store of the machine.
const WITHOUT_STORE: [&str; 21] = [
    "anon_inodefs",
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "fusectl",
    "mqueue",
    "nsfs",
    "pidfs",
    "pipefs",
    "proc",
    "securityfs",
    "selinuxfs",
    "sockfs",
    "sysfs",
    "tracefs",
];

/// Returns whether a file system of this type stores its files.
pub fn has_store(filesystem: &str) -> bool {
    !WITHOUT_STORE.contains(&filesystem)
}

/// Returns whether data written to this file is stored.
pub fn is_storage(file: &FileEvent) -> bool {
    // S_IFMT, S_IFIFO, S_IFCHR, S_IFBLK, S_IFSOCK of include/uapi/linux/stat.h.
    match file.mode & 0o170_000 {
        0o010_000 | 0o020_000 | 0o140_000 => false,
        // A file in devtmpfs that represents a disk.
        0o060_000 => true,
        _ => has_store(&file.filesystem),
    }
}

/// Returns whether the call is a mapping that ignores its descriptor.
fn is_plain_memory(call: &SyscallEvent) -> bool {
    let spec = call.call.spec();
    spec.class == SyscallClass::Map
        && spec.fd_arg().is_some()
        && spec.descriptor(&call.args).is_none_or(|fd| fd < 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blkkin_wire::syscalls::SyscallId;

    use super::*;
    use crate::fixtures;
    use crate::trace::Root;

    fn call(name: &str, args: [u64; 6]) -> Trace {
        let call = SyscallId::by_name(name).unwrap();
        let mut trace = fixtures::trace(1);
        trace.root = Root::Call(SyscallEvent { call, args, ..fixtures::call(1, 10, 20) });
        trace
    }

    #[test]
    fn a_transfer_is_storage_if_either_file_is() {
        const PIPE: (&str, u32) = ("pipefs", 0o010_600);
        const FILE: (&str, u32) = ("ext4", 0o100_644);
        for (from, to, expected) in
            [(PIPE, FILE, IoKind::Storage), (FILE, PIPE, IoKind::Storage), (PIPE, PIPE, IoKind::NotStorage)]
        {
            let mut trace = on(from.0, from.1);
            trace.names.second_file = on(to.0, to.1).names.file;
            assert_eq!(IoKind::of(&trace), expected, "{from:?} {to:?}");
        }
    }

    fn on(filesystem: &str, mode: u32) -> Trace {
        let mut trace = call("read", [3, 0, 0, 0, 0, 0]);
        let file = fixtures::file(fixtures::file_id(12), 1, "/x");
        trace.names.file = Some(Arc::new(FileEvent { filesystem: filesystem.into(), mode, ..file }.into()));
        trace
    }

    #[test]
    fn a_mapping_without_a_file_is_memory() {
        let flags = |flags, fd: i64| IoKind::of(&call("mmap", [0, 4096, 3, flags, fd as u64, 0]));
        assert_eq!(flags(0x22, -1), IoKind::NotStorage);
        assert_eq!(flags(0x22, 3), IoKind::NotStorage);
        // A file without a known name.
        assert_eq!(flags(0x02, 3), IoKind::Storage);
    }

    #[test]
    fn files_of_kernel_file_systems_are_not_storage_but_disks_are() {
        for (filesystem, mode) in
            [("proc", 0o100_444), ("cgroup2", 0o040_755), ("devpts", 0o020_620), ("pipefs", 0o010_600)]
        {
            assert_eq!(IoKind::of(&on(filesystem, mode)), IoKind::NotStorage, "{filesystem}");
        }
        for (filesystem, mode) in
            [("devtmpfs", 0o060_660), ("tmpfs", 0o100_644), ("", 0), ("ext4", 0o100_644)]
        {
            assert_eq!(IoKind::of(&on(filesystem, mode)), IoKind::Storage, "{filesystem}");
        }
    }

    #[test]
    fn calls_with_io_and_asynchronous_calls_are_storage() {
        let mut trace = on("proc", 0o100_444);
        trace.bios.push(fixtures::bio_and_request(1, 2, 3, (12, 18)).0);
        assert_eq!(IoKind::of(&trace), IoKind::Storage);
        let mut ring = call("io_uring_enter", [3, 1, 1, 1, 0, 0]);
        ring.names.file = on("anon_inodefs", 0o600).names.file;
        assert_eq!(IoKind::of(&ring), IoKind::Storage);
    }
}
