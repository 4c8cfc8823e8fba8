//! `v1::peek`: the header of a record of `blkkin.events`. It agrees with `v1::decode`.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_wire::v1;

fuzz_target!(|bytes: &[u8]| {
    let peeked = v1::peek(bytes);
    if let Ok(decoded) = v1::decode(bytes) {
        let peeked = peeked.expect("a record that decodes has a header");
        let events = decoded.batch.events.len() as u64 + decoded.calls_unknown;
        let (source, sequence) = (decoded.batch.source, decoded.batch.sequence);
        assert_eq!((peeked.source, peeked.sequence, peeked.events), (source, sequence, events));
    }
});
