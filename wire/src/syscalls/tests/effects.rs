//! Positions, offsets, bytes and new descriptors.

use super::super::{Args, Returns, SyscallId};
use super::{registers, spec};

#[test]
fn calls_that_may_use_the_file_position() {
    let users: Vec<_> =
        SyscallId::all().filter(|call| call.spec().uses_position()).map(SyscallId::name).collect();
    let expected = [
        "read",
        "readv",
        "preadv2",
        "write",
        "writev",
        "pwritev2",
        "lseek",
        "copy_file_range",
        "sendfile",
        "splice",
    ];
    assert_eq!(users, expected);
}

#[test]
fn calls_use_the_position_depending_on_their_arguments() {
    let some: Args = registers([3, 0x1000, 4, 0x2000, 4096, 0]);
    assert!(spec("read").uses_position_of(0, &some));
    assert!(spec("lseek").uses_position_of(0, &some));
    assert!(!spec("pread64").uses_position_of(0, &some));
    assert!(!spec("fstat").uses_position_of(0, &some));

    let preadv2 = |pos| spec("preadv2").uses_position_of(0, &registers([3, 0x1000, 1, pos, 0, 0]));
    assert!(preadv2(-1));
    assert!(!preadv2(0));

    let copy = spec("copy_file_range");
    assert!(!copy.uses_position_of(0, &some) && !copy.uses_position_of(2, &some));
    let own: Args = registers([3, 0, 4, 0x2000, 4096, 0]);
    assert!(copy.uses_position_of(0, &own) && !copy.uses_position_of(2, &own));
    assert!(!copy.uses_position_of(1, &own), "not a descriptor");

    let sendfile = spec("sendfile");
    let given: Args = registers([5, 3, 0x1000, 4096]);
    assert!(sendfile.uses_position_of(0, &given) && !sendfile.uses_position_of(1, &given));
    assert!(sendfile.uses_position_of(1, &registers([5, 3, 0, 4096])));
}

#[test]
fn calls_offsets_are_positions_by_value() {
    assert_eq!(spec("pread64").offset(&registers([3, 0x1000, 512, 8192])), Some(8192));
    assert_eq!(spec("preadv").offset(&registers([3, 0x1000, 2, 8192, 77])), Some(8192), "pos_h is no part");
    assert_eq!(spec("pwritev2").offset(&registers([3, 0x1000, 2, -1, 0, 0])), None);
    assert_eq!(spec("pwritev2").offset(&registers([3, 0x1000, 2, 0, 0, 0x10])), None, "RWF_APPEND");
    assert_eq!(spec("preadv2").offset(&registers([3, 0x1000, 2, 0, 0, 1])), Some(0));
    assert_eq!(spec("fallocate").offset(&registers([3, 0, 4096, 8192])), Some(4096));
    assert_eq!(spec("mmap").offset(&registers([0, 4096, 1, 1, 3, 8192])), Some(8192));
    assert_eq!(spec("mmap").offset(&registers([0, 4096, 1, 0x22, -1, 0])), None);
    for call in ["lseek", "read", "ftruncate", "sendfile", "sync"] {
        assert_eq!(spec(call).offset(&registers([3, 4, 5, 6])), None, "{call}");
    }
}

#[test]
fn calls_bytes_requested_and_moved() {
    assert_eq!(spec("pread64").requested_bytes(&registers([3, 0x1000, 512, 0])), Some(512));
    assert_eq!(spec("preadv").requested_bytes(&registers([3, 0x1000, 2, 0])), None);
    assert_eq!(spec("sendfile").requested_bytes(&registers([5, 3, 0, 4096])), Some(4096));
    assert_eq!(spec("sync_file_range").requested_bytes(&registers([3, 0, 4096, 2])), Some(4096));
    assert_eq!(spec("sync_file_range").requested_bytes(&registers([3, 0, 0, 2])), None, "up to the end");
    assert_eq!(spec("fsync").requested_bytes(&registers([3])), None);

    assert_eq!(spec("read").bytes(4096), Some(4096));
    assert_eq!(spec("read").bytes(0), Some(0));
    assert_eq!(spec("read").bytes(-5), None);
    assert_eq!(spec("splice").bytes(65536), Some(65536));
    for call in ["lseek", "readlink", "getxattr", "mmap", "openat", "io_submit"] {
        assert_eq!(spec(call).bytes(7), None, "{call}");
    }
}

#[test]
fn calls_that_return_descriptors() {
    let opening = |call: &SyscallId| call.spec().returns_descriptor_of_file();
    let names: Vec<_> = SyscallId::all().filter(opening).map(SyscallId::name).collect();
    assert_eq!(names, ["open", "openat", "openat2", "creat"]);

    let fcntl = |command| spec("fcntl").returned(&registers([3, command, 10]));
    assert_eq!((fcntl(0), fcntl(1030), fcntl(3)), (Returns::Duplicate, Returns::Duplicate, Returns::Flags));
    assert_eq!(fcntl(6), Returns::Status);
    for call in ["dup", "dup2", "dup3"] {
        assert!(spec(call).duplicates_descriptor(&registers([3, 4, 0])), "{call}");
    }
    assert!(!spec("fcntl").duplicates_descriptor(&registers([3, 4, 0])));
}

#[test]
fn calls_descriptors_ignore_the_upper_half() {
    assert_eq!(spec("fsync").descriptor(&registers([0x1234_0000_0003])), Some(3));
    assert_eq!(spec("fsync").descriptor(&registers([0xffff_ffff])), Some(-1));
    assert_eq!(spec("mmap").descriptor(&registers([0, 4096, 3, 0x22, -1, 0])), None);
    assert_eq!(spec("unlink").descriptor(&registers([0x1000])), None);
    assert!(spec("newfstatat").allows_empty_path(&registers([3, 0x1000, 0x2000, 0x1000])));
    assert!(!spec("newfstatat").allows_empty_path(&registers([3, 0x1000, 0x2000, 0x100])));
}
