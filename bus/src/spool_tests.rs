use std::fs;

use super::*;

const BATCH: usize = 10_000;

fn batch(n: u64) -> Vec<u8> {
    let mut batch = vec![n as u8; BATCH];
    batch[..8].copy_from_slice(&n.to_le_bytes());
    batch
}

fn number(batch: &[u8]) -> u64 {
    assert_eq!(batch.len(), BATCH);
    u64::from_le_bytes(*batch.first_chunk().unwrap())
}

fn open(folder: &Path) -> Spool {
    Spool::open(folder, BYTES_MIN).unwrap().unwrap()
}

fn put(spool: &mut Spool, numbers: std::ops::Range<u64>) {
    for n in numbers {
        spool.append(&batch(n)).unwrap();
    }
}

/// Appends batches from `first` on until the spool is full. Returns the first that was refused.
fn fill(spool: &mut Spool, first: u64) -> u64 {
    for n in first.. {
        match spool.append(&batch(n)) {
            Ok(_) => {}
            Err(AppendError::Full) => return n,
            Err(other) => panic!("{other:?}"),
        }
    }
    unreachable!()
}

fn read(spool: &mut Spool, max: usize) -> Vec<(u64, Position)> {
    let next = || spool.read().unwrap().map(|(batch, behind)| (number(&batch), behind));
    std::iter::from_fn(next).take(max).collect()
}

fn numbers_of(read: &[(u64, Position)]) -> Vec<u64> {
    read.iter().map(|(n, _)| *n).collect()
}

#[test]
fn batches_leave_in_order_within_the_limit_and_acknowledged_files_free_room() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    let refused = fill(&mut spool, 0);
    assert!(
        refused * BATCH as u64 <= BYTES_MIN && refused >= BYTES_MIN / (BATCH as u64 + 8) - 1,
        "{refused}"
    );
    let on_disk = || {
        let files =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        files.sum::<u64>()
    };
    assert!(on_disk() <= BYTES_MIN);
    let half = read(&mut spool, refused as usize / 2);
    for (_, behind) in &half {
        spool.acknowledge(*behind).unwrap();
    }
    assert_eq!(spool.stats().batches, refused - half.len() as u64);
    let later = fill(&mut spool, refused);
    assert!(later > refused + refused / 3, "{later}: room is freed by files");
    assert!(on_disk() <= BYTES_MIN);
    let rest = read(&mut spool, usize::MAX);
    assert_eq!([numbers_of(&half), numbers_of(&rest)].concat(), (0..later).collect::<Vec<_>>());
    assert!(spool.all_read());
    rest.iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    let SpoolStats { batches, written, read_back, corrupt, recovered, .. } = spool.stats();
    assert_eq!((batches, written, read_back, corrupt, recovered), (0, later, later, 0, 0));
    assert!(spool.stats().oldest.is_none() && on_disk() < 2 * REPLACE_BYTES);
}

#[test]
fn a_skipped_batch_is_not_read_and_is_removed_after_its_acknowledgement() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    for n in 0..1_000 {
        assert!(spool.all_read());
        let behind = spool.append(&batch(n)).unwrap();
        assert!(!spool.all_read());
        spool.skip_to(behind);
        spool.acknowledge(behind).unwrap();
    }
    let SpoolStats { batches, written, read_back, bytes, .. } = spool.stats();
    assert_eq!((batches, written, read_back), (0, 1_000, 0));
    assert!(bytes <= REPLACE_BYTES, "{bytes}");
}

#[test]
fn the_next_process_reads_from_the_saved_position_and_appends_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    put(&mut spool, 0..100);
    let first = read(&mut spool, 60);
    first[..40].iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    spool.save_progress().unwrap();
    first[40..50].iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    assert!(Spool::open(folder.path(), BYTES_MIN).unwrap().is_none(), "another process uses it");
    // As after a kill: only the saved position is known.
    drop(spool);
    let mut spool = open(folder.path());
    assert_eq!((spool.stats().recovered, number(spool.last_recovered().unwrap())), (60, 99));
    spool.append(&batch(100)).unwrap();
    let all = read(&mut spool, usize::MAX);
    assert_eq!(numbers_of(&all), (40..=100).collect::<Vec<_>>());
    all.iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    assert_eq!(spool.stats().batches, 0);
    spool.sync().unwrap();
    drop(spool);
    let mut spool = open(folder.path());
    assert_eq!((spool.stats().recovered, spool.all_read()), (0, true));
    spool.append(&batch(7)).unwrap();
    assert_eq!(numbers_of(&read(&mut spool, 9)), [7]);
}

#[test]
fn a_truncated_end_and_a_damaged_batch_are_counted_and_the_rest_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    // 27 batches fill a file of 256 KiB.
    put(&mut spool, 0..60);
    drop(spool);
    let files = file_numbers(folder.path()).unwrap();
    assert_eq!(files.len(), 3);
    let change = |number: u64, change: &dyn Fn(&mut Vec<u8>)| {
        let path = folder.path().join(file_name(number));
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
    };
    // Damages the sixth batch of the first file, and truncates the last batch of the last file.
    change(files[0], &|bytes| bytes[5 * (BATCH + 8) + 500] ^= 1);
    change(files[2], &|bytes| bytes.truncate(bytes.len() - 3));
    let mut spool = open(folder.path());
    assert_eq!((spool.stats().corrupt, spool.stats().recovered), (1, 59));
    spool.append(&batch(60)).unwrap();
    let all = read(&mut spool, usize::MAX);
    assert_eq!(numbers_of(&all), (0..5).chain(27..59).chain([60]).collect::<Vec<_>>());
    assert_eq!(spool.stats().corrupt, 1 + 22);
    all.iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    assert_eq!((spool.stats().batches, spool.all_read()), (0, true));
}

#[test]
fn a_failed_write_is_an_error_and_later_batches_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    spool.append(&batch(0)).unwrap();
    // A read-only descriptor stands for a failing disk.
    let path = folder.path().join(file_name(spool.segments[0].number));
    let working = spool.writer.replace(File::open(path).unwrap()).unwrap();
    assert!(matches!(spool.append(&batch(1)), Err(AppendError::Failed(_))));
    assert_eq!(numbers_of(&read(&mut spool, 9)), [0]);
    assert!(spool.all_read());
    drop(working);
    spool.append(&batch(2)).unwrap();
    assert_eq!(numbers_of(&read(&mut spool, 9)), [2]);
}

#[test]
fn batches_are_read_again_in_order_after_a_rewind() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    put(&mut spool, 0..40);
    let read_first = read(&mut spool, 30);
    for (_, behind) in &read_first[..10] {
        spool.acknowledge(*behind).unwrap();
    }
    spool.rewind();
    put(&mut spool, 40..50);
    assert!(!spool.all_read());
    let again = read(&mut spool, 100);
    assert_eq!(numbers_of(&again), (10..50).collect::<Vec<_>>());
    again.iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    assert_eq!((spool.stats().batches, spool.all_read()), (0, true));
}
