//! Bytes that a guest sends to its host's agent, and that the host sends to the guest. The first byte selects
//! how the rest is cut into reads.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_guest_port::{Receiver, Sender};

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    let (mut receiver, mut sender) = (Receiver::new(6), Sender::new(1_000));
    assert!(sender.add(b"record", 1));
    let mut last = None;
    for piece in bytes.chunks(usize::from(*cut) + 1) {
        receiver.receive(piece, |record| {
            // Within a request the numbers ascend.
            assert!(last.is_none_or(|last| record.number > last));
            last = Some(record.number);
        });
        sender.receive(piece);
        let written = sender.output().len();
        sender.wrote(written);
    }
    let stats = receiver.stats();
    assert!(stats.skipped_bytes <= bytes.len() as u64);
    let stats = sender.stats();
    assert_eq!(stats.acknowledged + stats.waiting, 1);
});
