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

/// Appends until it is full, from `first` on; the first that was refused.
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

fn read(spool: &mut Spool, most: usize) -> Vec<(u64, Position)> {
    let next = || spool.read().unwrap().map(|(batch, behind)| (number(&batch), behind));
    std::iter::from_fn(next).take(most).collect()
}

fn numbers_of(read: &[(u64, Position)]) -> Vec<u64> {
    read.iter().map(|(n, _)| *n).collect()
}

#[test]
fn first_in_is_first_out_within_the_bound_and_room_comes_back() {
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
    assert!(later > refused + refused / 3, "{later}: room comes back by files");
    assert!(on_disk() <= BYTES_MIN);
    let rest = read(&mut spool, usize::MAX);
    assert_eq!([numbers_of(&half), numbers_of(&rest)].concat(), (0..later).collect::<Vec<_>>());
    assert!(spool.all_read());
    rest.iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    let SpoolStats { batches, written, read_back, corrupt: torn, recovered: found, .. } = spool.stats();
    assert_eq!((batches, written, read_back, torn, found), (0, later, later, 0, 0));
    assert!(spool.stats().oldest.is_none() && on_disk() < 2 * RENEW_BYTES);
}

#[test]
fn what_is_handed_on_at_once_is_not_read_and_leaves_when_it_is_acknowledged() {
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
    assert!(bytes <= RENEW_BYTES, "{bytes}");
}

#[test]
fn the_next_one_goes_on_where_the_last_has_noted_and_puts_new_ones_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    put(&mut spool, 0..100);
    let first = read(&mut spool, 60);
    first[..40].iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    spool.save_progress().unwrap();
    first[40..50].iter().for_each(|(_, behind)| spool.acknowledge(*behind).unwrap());
    assert!(Spool::open(folder.path(), BYTES_MIN).unwrap().is_none(), "it is in use");
    // Killed: what is noted is what counts.
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
fn a_torn_end_and_a_damaged_batch_are_counted_and_the_rest_is_given_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    // 27 make a file of 256 KiB.
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
    // Within the sixth batch of the first file; and the last batch of all loses its end.
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
fn what_the_disk_does_not_take_is_refused_and_what_follows_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path());
    spool.append(&batch(0)).unwrap();
    // A descriptor that cannot be written to: as a disk that fails.
    let path = folder.path().join(file_name(spool.segments[0].number));
    let works = spool.writer.replace(File::open(path).unwrap()).unwrap();
    assert!(matches!(spool.append(&batch(1)), Err(AppendError::Failed(_))));
    assert_eq!(numbers_of(&read(&mut spool, 9)), [0]);
    assert!(spool.all_read());
    drop(works);
    spool.append(&batch(2)).unwrap();
    assert_eq!(numbers_of(&read(&mut spool, 9)), [2]);
}

#[test]
fn what_came_back_is_read_again_in_its_order() {
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
