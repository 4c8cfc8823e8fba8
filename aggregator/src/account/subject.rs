//! Whether a call asked storage for anything at all.
//!
//! *In*: a call's trace. *Out*: [`Subject`]. *Invariant*: in doubt it is storage: rather a wait too many in a table
//! than a slow request hidden. So a call with I/O is storage whatever its file is, and so is one whose file is not
//! known. *Counter-example*: by the file's type alone `proc` and `sysfs` hold regular files, and a mapping of plain
//! memory is a call without a file: "the file system took 100 % of it" would be said of none.

use blkkin_wire::event::{FileEvent, SyscallEvent};
use blkkin_wire::syscalls::SyscallClass;

use crate::trace::Trace;

/// What a call was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A file, a directory, a block device, or nothing in particular: storage.
    Storage,
    /// A pipe, a socket, a character device, a kernel's file without a store, or plain memory.
    NotStorage,
}

impl Subject {
    /// Of the call of `trace`; storage where it has none.
    pub fn of(trace: &Trace) -> Subject {
        let Some(call) = trace.call() else { return Subject::Storage };
        let has_io = call.bios > 0 || !trace.bios.is_empty() || !trace.causes.is_empty();
        // Calls of asynchronous I/O are on a file of their own kind, about others.
        if has_io || call.call.spec().class == SyscallClass::Async {
            return Subject::Storage;
        }
        let elsewhere = match (&trace.names.file, &trace.names.second_file) {
            // What goes from a pipe to a file is written there.
            (Some(file), second) => {
                !is_storage(file) && !second.as_deref().is_some_and(|file| is_storage(file))
            }
            (None, _) => is_plain_memory(call),
        };
        if elsewhere { Subject::NotStorage } else { Subject::Storage }
    }
}

/// File systems without a store, by the kernel's name of their type. Not among them: `tmpfs` and `ramfs`, whose files
/// hold what programs wrote, and `efivarfs` and `pstore`, which keep it in a store of the machine's own.
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

/// Whether the files of a file system of this type are stored anywhere.
pub fn has_store(filesystem: &str) -> bool {
    !WITHOUT_STORE.contains(&filesystem)
}

/// Whether what is written to this file is stored anywhere.
pub fn is_storage(file: &FileEvent) -> bool {
    // S_IFMT, S_IFIFO, S_IFCHR, S_IFBLK, S_IFSOCK of include/uapi/linux/stat.h.
    match file.mode & 0o170_000 {
        0o010_000 | 0o020_000 | 0o140_000 => false,
        // It lies in devtmpfs and stands for a disk.
        0o060_000 => true,
        _ => has_store(&file.filesystem),
    }
}

/// A mapping that ignores its descriptor.
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
    use crate::join::tests::make;
    use crate::trace::Root;

    fn call(name: &str, args: [u64; 6]) -> Trace {
        let call = SyscallId::by_name(name).unwrap();
        let mut trace = make::trace(1);
        trace.root = Root::Call(SyscallEvent { call, args, ..make::call(1, 10, 20) });
        trace
    }

    #[test]
    fn a_transfer_is_on_storage_when_either_end_is() {
        const PIPE: (&str, u32) = ("pipefs", 0o010_600);
        const FILE: (&str, u32) = ("ext4", 0o100_644);
        for (from, to, expected) in [
            (PIPE, FILE, Subject::Storage),
            (FILE, PIPE, Subject::Storage),
            (PIPE, PIPE, Subject::NotStorage),
        ] {
            let mut trace = on(from.0, from.1);
            trace.names.second_file = on(to.0, to.1).names.file;
            assert_eq!(Subject::of(&trace), expected, "{from:?} {to:?}");
        }
    }

    fn on(filesystem: &str, mode: u32) -> Trace {
        let mut trace = call("read", [3, 0, 0, 0, 0, 0]);
        let file = make::file(make::file_id(12), 1, "/x");
        trace.names.file = Some(Arc::new(FileEvent { filesystem: filesystem.into(), mode, ..file }.into()));
        trace
    }

    #[test]
    fn a_mapping_without_a_file_is_memory() {
        let flags = |flags, fd: i64| Subject::of(&call("mmap", [0, 4096, 3, flags, fd as u64, 0]));
        assert_eq!(flags(0x22, -1), Subject::NotStorage);
        assert_eq!(flags(0x22, 3), Subject::NotStorage);
        // A file that nobody named.
        assert_eq!(flags(0x02, 3), Subject::Storage);
    }

    #[test]
    fn files_of_the_kernels_own_file_systems_are_no_storage_but_disks_are() {
        for (filesystem, mode) in
            [("proc", 0o100_444), ("cgroup2", 0o040_755), ("devpts", 0o020_620), ("pipefs", 0o010_600)]
        {
            assert_eq!(Subject::of(&on(filesystem, mode)), Subject::NotStorage, "{filesystem}");
        }
        for (filesystem, mode) in
            [("devtmpfs", 0o060_660), ("tmpfs", 0o100_644), ("", 0), ("ext4", 0o100_644)]
        {
            assert_eq!(Subject::of(&on(filesystem, mode)), Subject::Storage, "{filesystem}");
        }
    }

    #[test]
    fn who_has_io_asked_storage_for_it_and_asynchronous_calls_did_too() {
        let mut trace = on("proc", 0o100_444);
        trace.bios.push(make::direct(1, 2, 3, (12, 18)).0);
        assert_eq!(Subject::of(&trace), Subject::Storage);
        let mut ring = call("io_uring_enter", [3, 1, 1, 1, 0, 0]);
        ring.names.file = on("anon_inodefs", 0o600).names.file;
        assert_eq!(Subject::of(&ring), Subject::Storage);
    }
}
