//! Paths of files that are renamed, linked, removed and created again while they are written to.
//!
//! *Input*: random changes of a directory tree, from a script that keeps its own record. Each
//! recorded write has the path that the script knows for its descriptor at that moment; the kernel's
//! own text (/proc/self/fd) must agree with the script.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use blkkin_tracer::TracerConfig;

use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::moving_tree::{Change, MovingTree, Performer};
use crate::support::recording::{Recorder, Recording};
use crate::support::{needs, or_skip};

const STEPS: usize = 10_000;
/// First offset of the writes that are compared.
const BASE: u64 = 1 << 20;

/// Process that moves the names.
#[derive(Clone, Copy, PartialEq)]
enum Mover {
    /// Traced process, which also writes.
    Writer,
    /// Another process, which is not traced.
    Untraced,
}

#[test]
fn each_write_on_ext4_has_the_path_of_its_moment() {
    needs!("losetup", "mkfs.ext4");
    check_moves(&or_skip!(Disk::ext4(64 << 20)), 1, Mover::Writer);
}

#[test]
fn each_write_on_xfs_has_the_path_of_its_moment() {
    needs!("losetup", "mkfs.xfs");
    check_moves(&or_skip!(Disk::with_file_system(320 << 20, "xfs")), 2, Mover::Writer);
}

#[test]
fn each_write_on_btrfs_has_the_path_of_its_moment() {
    needs!("losetup", "mkfs.btrfs");
    check_moves(&or_skip!(Disk::with_file_system(256 << 20, "btrfs")), 3, Mover::Writer);
}

#[test]
fn moves_by_a_process_that_is_not_traced_count_too() {
    needs!("losetup", "mkfs.ext4");
    check_moves(&or_skip!(Disk::ext4(64 << 20)), 4, Mover::Untraced);
}

/// Takes [`STEPS`] steps on this disk, and compares every write.
fn check_moves(disk: &Disk, seed: u64, mover: Mover) {
    let root = disk.mount_point().canonicalize().unwrap();
    // Words of memory that the processes share: the inodes of temporary files, by step.
    let inodes = shared_words(STEPS);
    let (mut orders, order) = std::io::pipe().unwrap();
    let (mut replies, reply) = std::io::pipe().unwrap();
    let mut untraced = GatedProcess::new({
        let (root, mut reply) = (root.clone(), reply.try_clone().unwrap());
        let order = order.try_clone().unwrap();
        move || {
            drop(order);
            let (mut tree, mut performer) = (MovingTree::new(&root, seed), Performer::new());
            for inode in inodes {
                let change = step(&mut tree, None).0;
                if !change.is_of_a_descriptor() && mover == Mover::Untraced {
                    orders.read_exact(&mut [0]).unwrap();
                    performer.perform(&tree, &change);
                    reply.write_all(b"r").unwrap();
                }
                if let Change::Temporary { name, .. } = change {
                    // The writer has created it before it gave the next order; until then its name
                    // does not matter here.
                    tree.set_text(name, format!("#{}", inode.load(Relaxed)));
                }
            }
            0
        }
    });
    let mut writer = GatedProcess::new({
        let (root, mut order) = (root.clone(), order);
        move || {
            drop(reply);
            let (mut tree, mut performer) = (MovingTree::new(&root, seed), Performer::new());
            for (offset, inode) in (BASE..).zip(inodes) {
                let change = tree.change();
                if mover == Mover::Untraced && !change.is_of_a_descriptor() {
                    order.write_all(b"o").unwrap();
                    replies.read_exact(&mut [0]).unwrap();
                } else if let Some(found) = performer.perform(&tree, &change) {
                    inode.store(found, Relaxed);
                }
                if let Change::Temporary { name, .. } = change {
                    tree.set_text(name, format!("#{}", inode.load(Relaxed)));
                }
                if let Some(fd) = tree.writer() {
                    performer.write_at(fd, offset);
                    assert_eq!(performer.kernel_path(fd), tree.path_of(fd), "step {offset}: {change:?}");
                }
            }
            0
        }
    });
    let recorder = Recorder::start(&TracerConfig::default(), &[writer.pid()]);
    untraced.release();
    assert_eq!(writer.run_to_exit(), 0);
    assert_eq!(untraced.run_to_exit(), 0);
    let recording = recorder.finish();
    recording.assert_calls_complete();
    compare(&recording, &expected(&root, seed, inodes));
}

/// Takes a step of the script: a change, and the descriptor that is written to.
fn step(tree: &mut MovingTree, inode: Option<u64>) -> (Change, Option<usize>) {
    let change = tree.change();
    if let (Change::Temporary { name, .. }, Some(inode)) = (&change, inode) {
        tree.set_text(*name, format!("#{inode}"));
    }
    let writer = tree.writer();
    (change, writer)
}

/// Returns the path of each write by its offset, as the script knows it.
fn expected(root: &Path, seed: u64, inodes: &[AtomicU64]) -> HashMap<u64, String> {
    let mut tree = MovingTree::new(root, seed);
    let mut paths = HashMap::new();
    for (offset, inode) in (BASE..).zip(inodes) {
        if let (_, Some(fd)) = step(&mut tree, Some(inode.load(Relaxed))) {
            paths.insert(offset, tree.path_of(fd));
        }
    }
    paths
}

/// Compares the recorded path of each write with the script's.
fn compare(recording: &Recording, expected: &HashMap<u64, String>) {
    let writes: HashMap<u64, Option<&str>> = recording
        .traces
        .iter()
        .filter_map(|trace| Some((trace.call()?, trace)))
        .filter(|(call, _)| call.call.name() == "pwrite64")
        .map(|(call, trace)| (call.args[3], trace.names.file.as_ref().map(|file| &**file.shown_path())))
        .collect();
    let wrong: Vec<_> = expected
        .iter()
        .filter(|(offset, path)| writes.get(offset) != Some(&Some(path.as_str())))
        .map(|(offset, path)| (offset, path, writes.get(offset)))
        .collect();
    let deleted = expected.values().filter(|path| path.ends_with(" (deleted)")).count();
    let paths: std::collections::HashSet<_> = expected.values().collect();
    println!(
        "{} writes, {deleted} of them to removed names, {} paths, {} path records; {} wrong",
        expected.len(),
        paths.len(),
        recording.files().count(),
        wrong.len()
    );
    assert!(expected.len() > STEPS * 9 / 10, "nearly every step writes");
    assert_eq!(writes.len(), expected.len());
    assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(5)]);
}

/// Returns words of memory that processes forked from now on share.
fn shared_words(count: usize) -> &'static [AtomicU64] {
    // SAFETY: a new mapping of this size, never unmapped, zeroed.
    unsafe {
        let (bytes, access) = (count * size_of::<AtomicU64>(), libc::PROT_READ | libc::PROT_WRITE);
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        std::slice::from_raw_parts(memory.cast(), count)
    }
}
