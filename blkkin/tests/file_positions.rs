//! File descriptors of system calls, and file positions before and after them.
//!
//! *Input*: calls that a child process makes with known descriptors and positions. Every recorded
//! call is compared with them.

use std::ptr::null_mut;

use blkkin_wire::event::{OpenFile, SyscallEvent, SyscallOutcome};

use crate::support::needs;
use crate::support::single_process::{c_path, create_file, file_of, record_process};
use crate::support::tools::identity;

/// Position of a call's primary file before and after the call.
type Positions = (Option<i64>, Option<i64>);

#[test]
fn positions_move_with_the_calls() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let path = create_file(folder.path(), "data", 100);
    let name = c_path(&path);
    let recording = record_process(move || {
        let buffer = [7u8; 64];
        let at = buffer.as_ptr().cast_mut().cast();
        let vector = [libc::iovec { iov_base: at, iov_len: 5 }, libc::iovec { iov_base: at, iov_len: 6 }];
        // SAFETY: the buffer is longer than any length below.
        unsafe {
            let fd = libc::open(name.as_ptr(), libc::O_RDWR);
            libc::write(fd, at, 10);
            libc::lseek(fd, 3, libc::SEEK_SET);
            libc::read(fd, at, 4);
            libc::pread(fd, at, 8, 50);
            libc::pwrite(fd, at, 8, 60);
            libc::readv(fd, vector.as_ptr(), 2);
            libc::writev(fd, vector.as_ptr(), 2);
            let twin = libc::dup(fd);
            libc::read(twin, at, 1);
            libc::read(fd, at, 1);
            libc::lseek(fd, 0, libc::SEEK_END);
            libc::read(fd, at, 1);
            libc::close(twin);
            libc::read(twin, at, 1);
        }
        0
    });
    let expected: [(&str, i64, Positions); 14] = [
        ("openat", 3, NONE),
        ("write", 10, moved(0, 10)),
        ("lseek", 3, moved(10, 3)),
        ("read", 4, moved(3, 7)),
        ("pread64", 8, NONE),
        ("pwrite64", 8, NONE),
        ("readv", 11, moved(7, 18)),
        ("writev", 11, moved(18, 29)),
        ("dup", 4, NONE),
        ("read", 1, moved(29, 30)),
        ("read", 1, moved(30, 31)),
        ("lseek", 100, moved(31, 100)),
        ("read", 0, moved(100, 100)),
        ("close", 0, NONE),
    ];
    let calls: Vec<_> = recording.calls().collect();
    for (call, (name, returned, positions)) in calls.iter().zip(expected) {
        assert_eq!(call.call.name(), name, "{call:#?}");
        if !["openat", "dup"].contains(&name) {
            assert_eq!(call.outcome, SyscallOutcome::Returned(returned), "{call:#?}");
        }
        assert_eq!(positions_of(call), positions, "{call:#?}");
        assert_eq!(file_of(call), Some(identity(&path)), "{call:#?}");
    }
    assert_eq!(calls.len(), 15);
    assert_eq!(
        (calls[14].outcome, calls[14].file),
        (SyscallOutcome::Returned(-9), None),
        "closed: EBADF, no file"
    );
}

#[test]
fn an_append_starts_at_the_position_and_ends_at_the_end() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let name = c_path(&create_file(folder.path(), "log", 100));
    let recording = record_process(move || {
        // SAFETY: three bytes of a constant.
        unsafe {
            let fd = libc::open(name.as_ptr(), libc::O_WRONLY | libc::O_APPEND);
            libc::write(fd, c"abc".as_ptr().cast(), 3);
            libc::write(fd, c"abc".as_ptr().cast(), 3);
        }
        0
    });
    let writes: Vec<_> = recording.calls_named("write").into_iter().map(positions_of).collect();
    assert_eq!(writes, [moved(0, 103), moved(103, 106)]);
}

#[test]
fn calls_with_two_files_have_both() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (create_file(folder.path(), "from", 1000), create_file(folder.path(), "to", 0));
    let (from_name, to_name) = (c_path(&from), c_path(&to));
    let recording = record_process(move || {
        let (mut source, mut target) = (500, 600);
        // SAFETY: the offsets outlive the calls.
        unsafe {
            let from = libc::open(from_name.as_ptr(), libc::O_RDONLY);
            let to = libc::open(to_name.as_ptr(), libc::O_WRONLY);
            libc::copy_file_range(from, null_mut(), to, null_mut(), 100, 0);
            libc::copy_file_range(from, &mut source, to, &mut target, 100, 0);
            libc::sendfile(to, from, null_mut(), 30);
            libc::sendfile(to, from, &mut source, 30);
        }
        0
    });
    let side =
        |open: &OpenFile| ((open.file.device, open.file.ino), open.position_before, open.position_after);
    let both = |call: &SyscallEvent| {
        (call.file.as_ref().map(side), call.second_file.as_ref().map(|open| side(open)))
    };
    let (from, to) = (identity(&from), identity(&to));
    let recorded: Vec<_> = recording
        .calls()
        .filter(|call| call.second_file.is_some())
        .map(|call| (call.call.name(), call.outcome, both(call)))
        .collect();
    let returned = SyscallOutcome::Returned;
    let at = |file, before, after| Some((file, Some(before), Some(after)));
    let no_positions = |file| Some((file, None, None));
    assert_eq!(
        recorded,
        [
            ("copy_file_range", returned(100), (at(from, 0, 100), at(to, 0, 100))),
            ("copy_file_range", returned(100), (no_positions(from), no_positions(to))),
            ("sendfile", returned(30), (at(from, 100, 130), at(to, 100, 130))),
            ("sendfile", returned(30), (no_positions(from), at(to, 130, 160))),
        ]
    );
}

/// Descriptors 0 to 63 are in the task's initial table, which is read differently from a grown
/// table.
#[test]
fn descriptors_of_grown_tables_name_their_files() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (create_file(folder.path(), "one", 1), create_file(folder.path(), "other", 1));
    let (one_name, other_name) = (c_path(&one), c_path(&other));
    const NUMBERS: [i32; 9] = [3, 62, 63, 64, 65, 100, 1023, 1024, 1500];
    let recording = record_process(move || {
        let limit = libc::rlimit { rlim_cur: 2048, rlim_max: 4096 };
        // SAFETY: numbers and constants only.
        unsafe {
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            let one = libc::open(one_name.as_ptr(), libc::O_WRONLY);
            let other = libc::open(other_name.as_ptr(), libc::O_WRONLY);
            for number in NUMBERS {
                if number != one {
                    libc::dup2(if number % 2 == 0 { other } else { one }, number);
                }
                libc::write(number, c"x".as_ptr().cast(), 1);
            }
            // The lowest again, after the table has grown.
            libc::write(one, c"x".as_ptr().cast(), 1);
        }
        0
    });
    let writes = recording.calls_named("write");
    assert_eq!(writes.len(), NUMBERS.len() + 1);
    for (write, number) in writes.iter().zip(NUMBERS.into_iter().chain([writes[9].args[0] as i32])) {
        let file = write.file.unwrap();
        assert_eq!(file.fd.0, number);
        let expected = if number % 2 == 0 && number > 10 { &other } else { &one };
        assert_eq!(file_of(write), Some(identity(expected)), "{write:#?}");
    }
}

const NONE: Positions = (None, None);

fn moved(from: i64, to: i64) -> Positions {
    (Some(from), Some(to))
}

fn positions_of(call: &SyscallEvent) -> Positions {
    call.file.map_or(NONE, |open| (open.position_before, open.position_after))
}
