//! Names of files that a path argument does not show: deep and long paths, bytes that are not
//! UTF-8, descriptors that were copied or passed on, removed directories, and mounts.
//!
//! *Input*: a child process makes the files and calls. Each call is marked by its offset, and its
//! path must be the one that the test composes.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use blkkin_wire::event::Captured;

use crate::support;
use crate::support::needs;
use crate::support::recording::Recording;
use crate::support::single_process::{c_path, create_file, record_process};
use crate::support::uring_rename;

/// Returns the shown path of the call with this name and offset, without mark and with it.
fn path_at(recording: &Recording, call: &str, offset: u64) -> String {
    let found = recording
        .traces
        .iter()
        .find(|trace| trace.call().is_some_and(|made| made.call.name() == call && made.args[3] == offset));
    let file = found.unwrap_or_else(|| panic!("no {call} at {offset}")).names.file.clone();
    file.map_or_else(|| "(unknown)".to_owned(), |file| file.shown_path().to_string())
}

/// Asserts the paths below `root` of the writes at offset 0, 1 and so on.
#[track_caller]
fn assert_written(recording: &Recording, root: &Path, paths: &[&str]) {
    for (offset, path) in (0..).zip(paths) {
        assert_eq!(path_at(recording, "pwrite64", offset), root.join(path).to_str().unwrap(), "{offset}");
    }
}

fn write_at(fd: RawFd, offset: i64) {
    // SAFETY: one byte of a constant.
    assert_eq!(unsafe { libc::pwrite(fd, c"x".as_ptr().cast(), 1, offset) }, 1);
}

/// Opens this file for writing; creates it if needed.
fn open_file(path: &Path) -> OwnedFd {
    // SAFETY: a string that outlives the call; the descriptor is new.
    unsafe {
        let fd = libc::open(c_path(path).as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
        assert!(fd >= 0, "{path:?}: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// Creates directories of this name inside each other, and returns the last one's descriptor and
/// path. The path may be longer than a path argument.
fn nest(root: &Path, name: &str, levels: usize) -> (OwnedFd, PathBuf) {
    let text = CString::new(name).unwrap();
    let mut path = root.to_owned();
    let mut directory: OwnedFd = fs::File::open(root).unwrap().into();
    for _ in 0..levels {
        // SAFETY: strings that outlive the calls; the descriptor is new.
        directory = unsafe {
            assert_eq!(libc::mkdirat(directory.as_raw_fd(), text.as_ptr(), 0o700), 0);
            let fd = libc::openat(directory.as_raw_fd(), text.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        path.push(name);
    }
    (directory, path)
}

/// Records a write at offset 7 to a new file of this directory.
fn record_write_in(directory: &OwnedFd, name: &'static CStr) -> Recording {
    let directory = directory.as_raw_fd();
    record_process(move || {
        // SAFETY: a constant.
        let fd = unsafe { libc::openat(directory, name.as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600) };
        write_at(fd, 7);
        0
    })
}

#[test]
fn deep_and_long_paths_are_whole() {
    needs!();
    for (levels, name) in [(60, "d"), (24, "e"), (700, "level"), (40, "f".repeat(180).as_str())] {
        let folder = tempfile::tempdir().unwrap();
        let (directory, path) = nest(&folder.path().canonicalize().unwrap(), name, levels);
        let expected = path.join("target");
        let recording = record_write_in(&directory, c"target");
        assert_eq!(path_at(&recording, "pwrite64", 7), expected.to_str().unwrap());
        assert_eq!((recording.stats.files_truncated, recording.stats.paths_failed), (0, 0));
        println!("{levels} levels, {} bytes", expected.as_os_str().len());
        remove_nested(folder.path(), name);
    }
}

/// Files in use at the same time, of 65,536 that the table of names has room for, and how often each is used.
const MANY: i64 = 10_000;
const USES: i64 = 4;

/// A path is sent once, but for files that share a set of the table with more than three others.
#[test]
fn each_path_of_many_files_is_sent_once_but_for_the_counted_ones() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let (child_root, limit_of_files) = (root.clone(), MANY as u64 + 100);
    let limit = libc::rlimit { rlim_cur: limit_of_files, rlim_max: limit_of_files };
    let recording = record_process(move || {
        // SAFETY: a structure of this frame.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        let files: Vec<OwnedFd> =
            (0..MANY).map(|number| open_file(&child_root.join(number.to_string()))).collect();
        for offset in 0..USES * MANY {
            write_at(files[(offset % MANY) as usize].as_raw_fd(), offset);
        }
        0
    });
    let mut paths = HashMap::new();
    for trace in &recording.traces {
        if let Some(write) = trace.call().filter(|call| call.call.name() == "pwrite64") {
            paths.insert(write.args[3], trace.names.file.as_ref().map(|file| file.shown_path().to_string()));
        }
    }
    assert_eq!(paths.len() as i64, USES * MANY);
    for (offset, path) in paths {
        assert_eq!(path.as_deref(), root.join((offset as i64 % MANY).to_string()).to_str(), "{offset}");
    }
    let sent = recording.files().filter(|file| Path::new(&*file.path).starts_with(&root)).count() as u64;
    let (files, displaced) = (MANY as u64, recording.stats.names_displaced);
    println!("{sent} names of {files} files, {displaced} displaced");
    assert!(sent >= files && sent <= files + displaced, "{sent} names, {displaced} displaced");
    // By Poisson's distribution some 4 files in 10,000 share a set with more than three others.
    assert!(displaced < files / 50, "{displaced} displaced");
}

/// A record has room for 8,192 bytes: 7 of `target` and 32 × 251, with their NULs.
#[test]
fn longer_paths_lose_their_upper_part_and_are_counted() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let name = "d".repeat(250);
    let (directory, _) = nest(&folder.path().canonicalize().unwrap(), &name, 40);
    let recording = record_write_in(&directory, c"target");
    let expected = format!("…/{}target", format!("{name}/").repeat(32));
    assert_eq!(path_at(&recording, "pwrite64", 7), expected);
    let file = recording.files().find(|file| file.path.ends_with("/target")).unwrap();
    assert_eq!(file.captured, Captured::Truncated);
    assert_eq!((recording.stats.files_truncated, recording.stats.paths_failed), (1, 0));
    remove_nested(folder.path(), &name);
}

/// Removes nested directories whose path is too long for one call.
fn remove_nested(root: &Path, name: &str) {
    let status = support::tools::tool("rm").arg("-rf").arg(root.join(name)).status().unwrap();
    assert!(status.success());
}

#[test]
fn names_that_are_not_utf8_are_escaped_and_stay_apart() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let names: [(&[u8], &str); 5] = [
        (b"caf\xe9", r"caf\xe9"),
        (b"caf\xe8", r"caf\xe8"),
        (br"caf\xe9", r"caf\x5cxe9"),
        (br"dev\x2dsda", r"dev\x2dsda"),
        ("käse\u{fffd}".as_bytes(), "käse\u{fffd}"),
    ];
    let paths = names.map(|(name, _)| root.join(OsStr::from_bytes(name)));
    let recording = record_process(move || {
        for (offset, path) in paths.iter().enumerate() {
            write_at(open_file(path).as_raw_fd(), offset as i64);
        }
        0
    });
    for (offset, (_, text)) in names.iter().enumerate() {
        assert_eq!(path_at(&recording, "pwrite64", offset as u64), format!("{}/{text}", root.display()));
    }
}

#[test]
fn each_hard_link_keeps_its_own_name() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let one = create_file(folder.path(), "one", 1);
    let other = one.with_file_name("other");
    fs::hard_link(&one, &other).unwrap();
    let paths = [one.clone(), other.clone()];
    let recording = record_process(move || {
        let descriptors = paths.each_ref().map(|path| open_file(path));
        for offset in 0..10 {
            write_at(descriptors[offset as usize % 2].as_raw_fd(), offset);
        }
        0
    });
    for offset in 0..10 {
        let expected = if offset % 2 == 0 { &one } else { &other };
        assert_eq!(path_at(&recording, "pwrite64", offset), expected.to_str().unwrap());
    }
}

#[test]
fn copied_and_passed_descriptors_have_the_path_of_the_moment() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (old, new) =
        (create_file(folder.path(), "old", 1), folder.path().canonicalize().unwrap().join("new"));
    let (first, second) = (old.clone(), new.clone());
    let recording = record_process(move || {
        let file = open_file(&first);
        // SAFETY: numbers, and a buffer of the process.
        unsafe {
            let copy = libc::dup2(file.as_raw_fd(), 200);
            let mut pair = [0; 2];
            libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr());
            write_at(copy, 0);
            if libc::fork() == 0 {
                write_at(copy, 1);
                let passed = receive_descriptor(pair[1]);
                write_at(passed, 2);
                libc::_exit(0);
            }
            send_descriptor(pair[0], file.as_raw_fd());
            libc::wait(null_mut());
            fs::rename(&first, &second).unwrap();
            write_at(file.as_raw_fd(), 3);
            write_at(copy, 4);
            fs::remove_file(&second).unwrap();
            write_at(copy, 5);
        }
        0
    });
    for (offset, path) in [&old, &old, &old, &new, &new].into_iter().enumerate() {
        assert_eq!(path_at(&recording, "pwrite64", offset as u64), path.to_str().unwrap(), "{offset}");
    }
    assert_eq!(path_at(&recording, "pwrite64", 5), format!("{} (deleted)", new.display()));
}

/// Sends a descriptor over a socket (SCM_RIGHTS).
///
/// # Safety
/// Both are open.
unsafe fn send_descriptor(socket: RawFd, fd: RawFd) {
    let (mut byte, mut space) = ([b'd'], [0u64; 8]);
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: the buffers outlive the call, and the space is larger than a header with a number.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        assert_eq!(libc::sendmsg(socket, &message, 0), 1);
    }
}

/// Receives a descriptor from a socket.
///
/// # Safety
/// The socket is open.
unsafe fn receive_descriptor(socket: RawFd) -> RawFd {
    let (mut byte, mut space) = ([0u8], [0u64; 8]);
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: as in `send_descriptor`.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
        (message.msg_control, message.msg_controllen) = (space.as_mut_ptr().cast(), 64);
        assert_eq!(libc::recvmsg(socket, &mut message, 0), 1);
        libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&message)).cast::<i32>().read_unaligned()
    }
}

/// A directory's descriptor: opened without access to content (O_PATH), and after its removal.
#[test]
fn directories_have_names_too() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("directory");
    fs::create_dir(&path).unwrap();
    let name = c_path(&path);
    let recording = record_process(move || {
        // SAFETY: a string that outlives the calls.
        unsafe {
            let reference = libc::open(name.as_ptr(), libc::O_PATH);
            let directory = libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
            assert!(reference >= 0 && directory >= 0);
            libc::close(reference);
            libc::rmdir(name.as_ptr());
            libc::fsync(directory);
        }
        0
    });
    let shown = |call: &str| -> Vec<String> {
        let traces =
            recording.traces.iter().filter(|trace| trace.call().is_some_and(|made| made.call.name() == call));
        traces.filter_map(|trace| Some(trace.names.file.as_ref()?.shown_path().to_string())).collect()
    };
    let path = path.to_str().unwrap().to_owned();
    assert_eq!(shown("openat"), [path.clone(), path.clone()]);
    assert_eq!(shown("close"), std::slice::from_ref(&path));
    assert_eq!(shown("fsync"), [format!("{path} (deleted)")]);
}

fn mount(source: &Path, target: &Path, kind: &CStr, flags: libc::c_ulong, options: Option<&CString>) {
    // SAFETY: strings that outlive the call.
    let result = unsafe {
        let options = options.map_or(null(), |options| options.as_ptr().cast());
        libc::mount(c_path(source).as_ptr(), c_path(target).as_ptr(), kind.as_ptr(), flags, options)
    };
    assert_eq!(result, 0, "{source:?} at {target:?}: {}", std::io::Error::last_os_error());
}

/// Leaves the mount namespace of the test, so that its mounts end with this process.
fn enter_own_mount_namespace() {
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    mount(Path::new("none"), Path::new("/"), c"", libc::MS_REC | libc::MS_PRIVATE, None);
}

/// A file has the path through the mount by which it was opened, wherever that is mounted now. A
/// directory above the mount point is renamed, too.
#[test]
fn a_path_follows_its_mount() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    for name in ["source", "upper", "upper/first", "second"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    let at = root.clone();
    let recording = record_process(move || {
        enter_own_mount_namespace();
        let [source, first, second] = ["source", "upper/first", "second"].map(|name| at.join(name));
        mount(&source, &first, c"", libc::MS_BIND, None);
        let (named, bound) = (open_file(&source.join("f")), open_file(&first.join("f")));
        write_at(named.as_raw_fd(), 0);
        write_at(bound.as_raw_fd(), 1);
        fs::rename(at.join("upper"), at.join("renamed")).unwrap();
        write_at(bound.as_raw_fd(), 2);
        mount(&at.join("renamed/first"), &second, c"", libc::MS_MOVE, None);
        write_at(named.as_raw_fd(), 3);
        write_at(bound.as_raw_fd(), 4);
        // SAFETY: a string that outlives the call.
        unsafe { libc::umount2(c_path(&second).as_ptr(), libc::MNT_DETACH) };
        write_at(bound.as_raw_fd(), 5);
        0
    });
    let expected = ["source/f", "upper/first/f", "renamed/first/f", "source/f", "second/f"];
    assert_written(&recording, &root, &expected);
    assert_eq!(path_at(&recording, "pwrite64", 5), "(unmounted)/f");
}

/// A directory that is mounted within itself: each way to a file is a path of its own.
#[test]
fn a_bind_mount_within_itself_has_finite_paths() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("a/b")).unwrap();
    let at = root.clone();
    let recording = record_process(move || {
        enter_own_mount_namespace();
        mount(&at, &at.join("a/b"), c"", libc::MS_BIND | libc::MS_REC, None);
        mount(&at, &at.join("a/b/a/b"), c"", libc::MS_BIND | libc::MS_REC, None);
        for (offset, path) in ["f", "a/b/f", "a/b/a/b/f"].into_iter().enumerate() {
            write_at(open_file(&at.join(path)).as_raw_fd(), offset as i64);
        }
        0
    });
    assert_written(&recording, &root, &["f", "a/b/f", "a/b/a/b/f"]);
}

/// A rename by io_uring runs in a worker thread, without a system call.
#[test]
fn a_rename_by_io_uring_changes_the_path() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    fs::create_dir(root.join("old")).unwrap();
    let at = root.clone();
    let status = root.join("status");
    let recording = record_process(move || {
        let file = open_file(&at.join("old/f"));
        write_at(file.as_raw_fd(), 0);
        for (offset, (from, to)) in (1..).zip([("old", "new"), ("new", "third"), ("third", "fourth")]) {
            let result = uring_rename::rename(&c_path(&at.join(from)), &c_path(&at.join(to)));
            if let Err(reason) = result {
                fs::write(status, reason).unwrap();
                return 0;
            }
            write_at(file.as_raw_fd(), offset);
        }
        0
    });
    if let Ok(reason) = fs::read_to_string(root.join("status")) {
        support::skip!("{reason}");
    }
    assert_written(&recording, &root, &["old/f", "new/f", "third/f", "fourth/f"]);
}
