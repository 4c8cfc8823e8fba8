//! Files of overlayfs, as containers have: the path is that of the mount, the identity that of the layer with
//! the data, and bios of the layer's file system lead to the program.
//!
//! *Input*: a child process reads and writes a file of the lower layer, with offsets that mark the calls.
//! *Witness*: device and inode by stat(2) of the files in the layers' own folders.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{Submitter, SyscallEvent};
use blkkin_wire::page_origin::{PageOriginEvent, WriterEvidence};

use crate::support::disk::{Disk, sync};
use crate::support::fio::asynchronous_reads;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::overlay::Overlay;
use crate::support::recording::{Recording, record, record_one};
use crate::support::{needs, or_skip};

const DISK: u64 = 64 << 20;
const BLOCK: usize = 4096;
const BLOCKS: usize = 16;

#[test]
fn a_file_has_the_path_of_the_mount_and_the_inode_of_the_layer_with_its_data() {
    needs!("losetup", "mkfs.ext4", "mount");
    let disk = or_skip!(Disk::ext4(DISK));
    let overlay = or_skip!(Overlay::mount(&disk));
    fs::write(overlay.lower.join("file"), vec![b'l'; BLOCK * BLOCKS]).unwrap();
    sync(&disk.mount_point());
    let path = overlay.merged.join("file");
    let mut process = GatedProcess::new(|| {
        let early = File::open(&path).unwrap();
        read(&early, 1);
        let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        writer.write_all_at(&[b'u'; 3], 2).unwrap();
        // Opened before the copy, it reads from the upper layer all the same.
        read(&early, 3);
        writer.set_len((BLOCK * BLOCKS - 4) as u64).unwrap();
        // A store is seen where its page was clean.
        writer.sync_all().unwrap();
        store(&writer, 5);
        let new = OpenOptions::new().create_new(true).write(true).open(path.with_file_name("new")).unwrap();
        new.write_all_at(&[b'n'; 6], 6).unwrap();
        for file in [&writer, &new] {
            file.sync_all().unwrap();
        }
        File::create_new(path.with_file_name("another")).unwrap();
        File::open(path.parent().unwrap()).unwrap().sync_all().unwrap();
        0
    });
    let config = TracerConfig { dirty_pages: true, ..TracerConfig::default() };
    let recording = record(&config, &mut [&mut process]);
    recording.assert_calls_complete();
    let [lower, upper, new] =
        [overlay.lower.join("file"), overlay.upper.join("file"), overlay.upper.join("new")].map(ino);
    assert_ne!(lower, upper);
    for (call, offset, ino, name) in [
        ("pread64", 1, lower, "file"),
        ("pwrite64", 2, upper, "file"),
        ("pread64", 3, upper, "file"),
        ("pwrite64", 6, new, "new"),
    ] {
        let (found, shown) = call_at(&recording, call, offset);
        let file = found.file.unwrap().file;
        assert_eq!((file.device, file.ino), (disk.device(), ino), "{call} at {offset}: {found:#?}");
        assert_eq!(Path::new(&shown), path.with_file_name(name), "{call} at {offset}");
    }
    // A commit of the layer's file system serves the fsyncs of the new file and of the directory.
    let syncs = recording.traces.iter().filter_map(|trace| Some((trace.call()?, trace.waited_for.len())));
    let mut syncs: Vec<_> = syncs.filter(|(call, _)| call.call.name() == "fsync").collect();
    syncs.sort_by_key(|(call, _)| call.enter);
    let folder = fs::metadata(&overlay.upper).unwrap().ino();
    let last: Vec<_> =
        syncs.iter().rev().map(|(call, commits)| (call.file.unwrap().file.ino, *commits)).take(2).collect();
    assert_eq!(last, [(folder, 1), (new, 1)], "{syncs:#?}");
    // The bios of the two files' fsyncs carry the data of these calls, and of the store.
    for (ino, evidences) in [
        (upper, &[WriterEvidence::EndedBefore, WriterEvidence::MappedStore][..]),
        (new, &[WriterEvidence::EndedBefore]),
    ] {
        let origins: Vec<&PageOriginEvent> = recording
            .page_origins()
            .filter(|origin| origin.file.is_some_and(|file| (file.device, file.ino) == (disk.device(), ino)))
            .collect();
        for evidence in evidences {
            let mut writers = origins.iter().flat_map(|origin| &origin.writers);
            assert!(writers.any(|writer| writer.evidence == *evidence), "{evidence:?}: {origins:#?}");
        }
    }
}

/// With the option `metacopy` a change of attributes copies no data. podman mounts so.
#[test]
fn a_copy_of_the_attributes_alone_leads_to_the_inode_with_the_data() {
    needs!("losetup", "mkfs.ext4", "mount");
    let disk = or_skip!(Disk::ext4(DISK));
    let overlay = or_skip!(Overlay::mount_with(&disk, ",metacopy=on"));
    fs::write(overlay.lower.join("file"), vec![b'l'; BLOCK * BLOCKS]).unwrap();
    sync(&disk.mount_point());
    let (path, copy) = (overlay.merged.join("file"), overlay.upper.join("file"));
    let mut process = GatedProcess::new(|| {
        let early = File::open(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // A copy of the attributes alone has no block of data.
        if fs::metadata(&copy).unwrap().blocks() * 512 >= (BLOCK * BLOCKS) as u64 {
            return 1;
        }
        read(&early, 1);
        read(&File::open(&path).unwrap(), 2);
        let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        writer.write_all_at(&[b'u'; 3], 3).unwrap();
        read(&early, 4);
        0
    });
    let recording = record_one(&mut process);
    let [lower, upper] = [overlay.lower.join("file"), copy].map(ino);
    assert_ne!(lower, upper);
    for (call, offset, ino) in
        [("pread64", 1, lower), ("pread64", 2, lower), ("pwrite64", 3, upper), ("pread64", 4, upper)]
    {
        let (found, shown) = call_at(&recording, call, offset);
        let file = found.file.unwrap().file;
        assert_eq!((file.device, file.ino), (disk.device(), ino), "{call} at {offset}: {found:#?}");
        assert_eq!(Path::new(&shown), path, "{call} at {offset}");
    }
}

/// The kernel allows one overlayfs below another: a container's storage in a container.
#[test]
fn a_file_of_an_overlayfs_below_another_has_the_inode_with_its_data() {
    needs!("losetup", "mkfs.ext4", "mount");
    let disk = or_skip!(Disk::ext4(DISK));
    let below = or_skip!(Overlay::mount(&disk));
    for name in ["lowest", "copied"] {
        fs::write(below.lower.join(name), vec![b'l'; BLOCK * BLOCKS]).unwrap();
    }
    fs::write(below.merged.join("copied"), vec![b'u'; BLOCK * BLOCKS]).unwrap();
    let overlay = or_skip!(below.mount_above(&disk));
    sync(&disk.mount_point());
    let path = |name: &str| overlay.merged.join(name);
    let mut process = GatedProcess::new(|| {
        read(&File::open(path("lowest")).unwrap(), 1);
        read(&File::open(path("copied")).unwrap(), 2);
        let writer = OpenOptions::new().write(true).open(path("lowest")).unwrap();
        writer.write_all_at(&[b'w'; 3], 3).unwrap();
        0
    });
    let recording = record_one(&mut process);
    let expected = [
        ("pread64", 1, below.lower.join("lowest"), "lowest"),
        ("pread64", 2, below.upper.join("copied"), "copied"),
        ("pwrite64", 3, overlay.upper.join("lowest"), "lowest"),
    ];
    for (call, offset, of_layer, name) in expected {
        let (found, shown) = call_at(&recording, call, offset);
        let file = found.file.unwrap().file;
        assert_eq!((file.device, file.ino), (disk.device(), ino(of_layer)), "{call} at {offset}: {found:#?}");
        assert_eq!(Path::new(&shown), path(name), "{call} at {offset}");
    }
}

/// Overlayfs reads from the layer with a kiocb of its own. fio has one request at a time.
#[test]
fn requests_of_io_uring_have_the_bios_of_the_layer() {
    const READS: usize = 64;
    needs!("fio", "losetup", "mkfs.ext4", "mount");
    let disk = or_skip!(Disk::ext4(DISK));
    let overlay = or_skip!(Overlay::mount(&disk));
    let file = overlay.merged.join("file");
    fs::write(&file, vec![b'f'; BLOCK * READS]).unwrap();
    sync(&disk.mount_point());
    let args = asynchronous_reads("io_uring", &file, (BLOCK * READS) as u64, &disk.file("fio.out"), &[]);
    let recording = until_complete(|| {
        let mut process = GatedProcess::program(&args, &disk.file("program.out"));
        record_one(&mut process)
    });
    let ios: Vec<_> = recording.async_ios().collect();
    let of_layer = fs::metadata(overlay.upper.join("file")).unwrap().ino();
    assert_eq!(ios.len(), READS);
    for io in ios {
        // What the call executes itself (Linux 6.1) is the call's: no pointer leads to the request.
        let submitter = if io.queued.is_some() { io.span } else { io.submitter.unwrap() };
        let bios = recording.bios().filter(|bio| bio.submitter == Submitter::Span(submitter)).count();
        assert_eq!((bios, io.file.unwrap().ino), (1, of_layer), "{io:#?}");
    }
}

/// Returns the call with this offset, and the path that is shown for its file.
fn call_at<'a>(recording: &'a Recording, name: &str, offset: u64) -> (&'a SyscallEvent, String) {
    let calls = recording.traces.iter().filter_map(|trace| Some((trace.call()?, trace)));
    let mut calls = calls.filter(|(call, _)| call.call.name() == name && call.args[3] == offset);
    let (call, trace) = calls.next().unwrap_or_else(|| panic!("no {name} at {offset}"));
    (call, trace.names.file.as_ref().map(|file| file.shown_path().to_string()).unwrap_or_default())
}

fn ino(path: PathBuf) -> u64 {
    fs::metadata(path).unwrap().ino()
}

fn read(file: &File, offset: u64) {
    assert_eq!(file.read_at(&mut [0; 1], offset).unwrap(), 1);
}

/// Stores a byte through a shared mapping of the file.
fn store(file: &File, offset: usize) {
    // SAFETY: a new mapping of a file that is longer than the offset.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), BLOCK, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().add(offset).write_volatile(b'm');
        libc::munmap(at, BLOCK);
    }
}
