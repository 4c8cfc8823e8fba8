//! Tests of what the reader excludes, and of the table.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{OpenFile, TaskRef};
use blkkin_wire::ids::{DeviceId, Fd, FileId, SpanId, TaskId};
use blkkin_wire::syscalls::SyscallId;

use super::*;

/// Numbers of the paths of two files.
const WANTED: u64 = 1 | 1 << 32;
const OTHER: u64 = 3 | 1 << 32;

fn filter(patterns: &[&str]) -> PathFilter {
    PathFilter {
        patterns: patterns.iter().map(|pattern| PathPattern::parse(pattern).unwrap()).collect(),
        excluded: ExcludedPaths::new(None),
        keeps_sockets: false,
    }
}

fn file_id(name: u64) -> FileId {
    FileId { device: DeviceId { major: 8, minor: 0 }, ino: 12, generation: 1, name: NameId(name) }
}

fn file(name: u64, path: &str) -> FileEvent {
    FileEvent::bare(file_id(name), MonotonicNs(1), path)
}

fn open(name: u64) -> OpenFile {
    OpenFile { fd: Fd(3), file: file_id(name), position_before: None, position_after: None }
}

/// A call on a file with this number of its path; 0 for no file.
fn call(name: u64) -> SyscallEvent {
    let (task, pread) = (TaskRef { id: TaskId(1), version: 1 }, SyscallId::by_name("pread64").unwrap());
    let times = [5, 6].map(MonotonicNs);
    SyscallEvent {
        file: (name != 0).then(|| open(name)),
        ..SyscallEvent::bare(SpanId(1), task, pread, times[0], times[1])
    }
}

/// Returns how many of these calls stay, behind the file WANTED (below /srv) and the file OTHER.
fn stay(calls: impl IntoIterator<Item = SyscallEvent>) -> usize {
    let mut events =
        vec![LayerEvent::File(file(WANTED, "/srv/db/1")), LayerEvent::File(file(OTHER, "/var/log/1"))];
    events.extend(calls.into_iter().map(LayerEvent::Syscall));
    let calls = events.len() - 2;
    let dropped = filter(&["/srv"]).apply(&mut events);
    assert_eq!(events.len() as u64, 2 + calls as u64 - dropped, "no file's event is dropped");
    events.len() - 2
}

#[test]
fn calls_on_other_files_without_bios_are_dropped() {
    assert_eq!(stay([call(WANTED)]), 1);
    assert_eq!(stay([call(OTHER)]), 0);
    assert_eq!(stay([SyscallEvent { bios: 1, ..call(OTHER) }]), 1, "its bios may have been sent");
}

#[test]
fn a_path_that_is_not_known_excludes_nothing() {
    assert_eq!(stay([call(5 | 1 << 32)]), 1);
    assert_eq!(stay([call(0)]), 1, "msync has no file, and may be of one that matches");
    let named = |path: &str| SyscallEvent { paths: [Some(path.into()), None], ..call(0) };
    assert_eq!((stay([named("pg_wal/1")]), stay([named("/etc/x")])), (1, 0), "of an unknown folder");
    let opened = SyscallEvent { paths: [Some("log".into()), None], ..call(OTHER) };
    assert_eq!(stay([opened]), 0, "its file is known");
    let renamed = SyscallEvent { paths: [Some("/etc/x".into()), Some("y".into())], ..call(0) };
    assert_eq!(stay([renamed]), 1);
    assert_eq!(stay([SyscallEvent { paths_captured: Captured::Truncated, ..call(OTHER) }]), 1);
    let mut filter = filter(&["/srv"]);
    let cut = FileEvent { captured: Captured::Truncated, ..file(OTHER, "…/log/1") };
    filter.apply(&mut vec![LayerEvent::File(cut)]);
    assert!(!filter.excluded.contains(NameId(OTHER)));
}

#[test]
fn one_path_that_matches_is_enough() {
    let both = |second| SyscallEvent { second_file: Some(Box::new(open(second))), ..call(OTHER) };
    assert_eq!((stay([both(WANTED)]), stay([both(OTHER)])), (1, 0));
    let named = |path: &str| SyscallEvent { paths: [Some(path.into()), None], ..call(OTHER) };
    assert_eq!((stay([named("/srv/link")]), stay([named("/etc/x")])), (1, 0));
}

#[test]
fn sockets_stay_where_they_carry_nbd_requests() {
    let socket = FileEvent { filesystem: SOCKETS.into(), ..file(OTHER, "socket:[1]") };
    for keeps_sockets in [false, true] {
        let mut filter = PathFilter { keeps_sockets, ..filter(&["/srv"]) };
        filter.apply(&mut vec![LayerEvent::File(socket.clone())]);
        assert_eq!(filter.excluded.contains(NameId(OTHER)), !keeps_sockets);
    }
}

#[test]
fn a_full_set_displaces_one_path_and_no_more() {
    let mut table = ExcludedPaths::new(None);
    let names: Vec<NameId> = (0..=WAYS as u64).map(|n| NameId(7 << 32 | n << 1 | 1)).collect();
    names.iter().for_each(|name| table.insert(*name));
    let known = names.iter().filter(|name| table.contains(**name)).count();
    assert_eq!((known, table.contains(names[WAYS])), (WAYS, true));
    assert!(!table.contains(NameId::NONE));
}
