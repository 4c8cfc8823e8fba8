//! Path arguments of system calls, and paths of open files.
//!
//! *Input*: calls that a child process makes with known paths. The recorded paths must be those
//! that the process used.

use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::ptr::null_mut;

use blkkin_wire::event::{Captured, SyscallOutcome};

use crate::support::disk::Disk;
use crate::support::recording::Recording;
use crate::support::single_process::{c_path, create_file, file_of, record_process};
use crate::support::tools::identity;
use crate::support::{needs, or_skip};

#[test]
fn a_file_has_the_path_by_which_it_was_opened() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (create_file(folder.path(), "old", 1), folder.path().join("new"));
    let (old_name, new_name) = (c_path(&old), c_path(&new));
    let recording = record_process(move || {
        // SAFETY: constants only.
        unsafe {
            let first = libc::open(old_name.as_ptr(), libc::O_WRONLY);
            libc::write(first, c"x".as_ptr().cast(), 1);
            libc::rename(old_name.as_ptr(), new_name.as_ptr());
            let second = libc::open(new_name.as_ptr(), libc::O_WRONLY);
            libc::write(second, c"x".as_ptr().cast(), 1);
        }
        0
    });
    let paths: Vec<_> = names_at(&recording, "write");
    assert_eq!(paths, [Some(old.clone()), Some(new.clone())]);
    let rename = recording.calls().find(|call| call.call.name().starts_with("rename")).unwrap();
    let recorded = rename.paths.each_ref().map(|path| path.as_deref().map(PathBuf::from));
    assert_eq!(recorded, [Some(old), Some(new)]);
}

#[test]
fn long_path_arguments_are_truncated_and_counted() {
    needs!();
    let whole = format!("/{}/{}", "a".repeat(127), "b".repeat(127));
    let long = format!("/{}/{}", "c".repeat(127), "d".repeat(128));
    assert_eq!((whole.len(), long.len()), (256, 257));
    let (first, second) = (CString::new(whole.clone()).unwrap(), CString::new(long.clone()).unwrap());
    let recording = record_process(move || {
        // SAFETY: strings that outlive the calls.
        unsafe {
            libc::open(first.as_ptr(), libc::O_RDONLY);
            libc::open(second.as_ptr(), libc::O_RDONLY);
            libc::link(second.as_ptr(), second.as_ptr());
            libc::link(first.as_ptr(), second.as_ptr());
        }
        0
    });
    let truncated = &long[..256];
    let recorded: Vec<_> = recording
        .calls()
        .map(|c| (c.paths_captured, [&c.paths[0], &c.paths[1]].map(|p| p.as_deref())))
        .collect();
    assert_eq!(
        recorded,
        [
            (Captured::Full, [Some(whole.as_str()), None]),
            (Captured::Truncated, [Some(truncated), None]),
            (Captured::Truncated, [Some(truncated), Some(truncated)]),
            (Captured::Truncated, [Some(whole.as_str()), Some(truncated)]),
        ]
    );
    assert_eq!(recording.stats.calls_truncated, 3);
}

#[test]
fn an_unreadable_path_is_marked_as_faulted() {
    needs!();
    let recording = record_process(|| {
        // SAFETY: the kernel refuses the address; nothing is read.
        unsafe { libc::open(16 as *const libc::c_char, libc::O_RDONLY) };
        0
    });
    let call = recording.calls().next().unwrap();
    assert_eq!(
        (call.outcome, call.paths_captured),
        (SyscallOutcome::Returned(-14), Captured::Faulted),
        "{call:#?}"
    );
}

/// A probe cannot fault pages in. This path is in a page that the process never touched. The kernel
/// faults the page in during the call, so blkkin can read the path at return.
#[test]
fn a_path_in_an_unmapped_page_is_read_at_return() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let target = create_file(folder.path(), "target", 1);
    let holder = folder.path().join("holder");
    fs::write(&holder, c_path(&target).as_bytes_with_nul()).unwrap();
    let holder = fs::File::open(holder).unwrap();
    let recording = record_process(move || {
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping, as long as the file's page.
        unsafe {
            let page =
                libc::mmap(null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, holder.as_raw_fd(), 0);
            libc::open(page.cast(), libc::O_RDONLY);
        }
        0
    });
    let open = recording.calls_named("openat")[0];
    assert_eq!(
        (open.paths[0].as_deref(), open.paths_captured),
        (target.to_str(), Captured::Full),
        "{open:#?}"
    );
    assert_eq!(file_of(open), Some(identity(&target)));
}

#[test]
fn paths_cross_mount_points_and_inode_numbers_are_reused() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4_with(8 << 20, &["-N", "16"]));
    let folder = disk.mount_point();
    let first = folder.join("first");
    fs::write(&first, "1").unwrap();
    let before = identity(&first);
    // Only the inode that will be freed is left.
    let full = (0..64).take_while(|i| fs::write(folder.join(format!("{i}")), "").is_ok()).count();
    assert!(full < 64);
    let second = folder.join("second");
    let (first_name, second_name) = (c_path(&first), c_path(&second));
    let recording = record_process(move || {
        // SAFETY: constants only.
        unsafe {
            let old = libc::open(first_name.as_ptr(), libc::O_WRONLY);
            libc::write(old, c"x".as_ptr().cast(), 1);
            libc::close(old);
            libc::unlink(first_name.as_ptr());
            let new = libc::open(second_name.as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600);
            libc::write(new, c"x".as_ptr().cast(), 1);
        }
        0
    });
    let after = identity(&second);
    assert_eq!(after, before, "the inode number was not reused");
    let files: Vec<_> = recording.calls_named("write").iter().map(|call| call.file.unwrap().file).collect();
    assert_eq!(files.iter().map(|file| (file.device, file.ino)).collect::<Vec<_>>(), [before, before]);
    assert_ne!(files[0].generation, files[1].generation);
    assert_eq!(names_at(&recording, "write"), [Some(first), Some(second)]);
    for named in recording.files().filter(|named| files.contains(&named.file)) {
        assert_eq!((&*named.filesystem, named.captured), ("ext4", Captured::Full), "{named:#?}");
    }
}

/// Returns the file paths of all calls of this name, as their traces have them.
fn names_at(recording: &Recording, name: &str) -> Vec<Option<PathBuf>> {
    let mut traces: Vec<_> = recording
        .traces
        .iter()
        .filter(|trace| trace.call().is_some_and(|call| call.call.name() == name))
        .collect();
    traces.sort_by_key(|trace| trace.start());
    traces.iter().map(|trace| trace.names.file.as_ref().map(|file| PathBuf::from(&*file.path))).collect()
}
