//! File of a spool or a recording. Both readers return the same batches, and the spool returns no
//! more bytes than the file has.
#![no_main]

use std::fs;
use std::path::Path;

use blkkin_bus::recording::{Position, Recording};
use blkkin_bus::spool::{BYTES_MIN, Spool};
use blkkin_fuzz::fuzz_target;

thread_local! {
    static FOLDER: tempfile::TempDir = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
}

fuzz_target!(|bytes: &[u8]| FOLDER.with(|folder| read(folder.path(), bytes)));

fn read(folder: &Path, bytes: &[u8]) {
    let file = folder.join("00000001.batches");
    fs::write(&file, bytes).expect("the folder is writable");
    let mut recording = Recording::open(folder, Position::default()).expect("the folder exists");
    let mut recorded = Vec::new();
    while let Some((batch, _)) = recording.read().expect("the file is readable") {
        recorded.push(batch);
    }
    let mut spool = Spool::open(folder, BYTES_MIN).expect("the file is readable").expect("not in use");
    let mut read_back = Vec::new();
    while let Some((batch, behind)) = spool.read().expect("the file is readable") {
        assert!(behind.offset <= bytes.len() as u64);
        read_back.push(batch);
    }
    assert_eq!(read_back, recorded);
    let _ = fs::remove_file(&file);
}
