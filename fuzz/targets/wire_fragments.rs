//! `v1::decode_fragments`: records of `blkkin.spans`, `blkkin.traces` and `blkkin.links`. What
//! decodes encodes to bytes that decode to the same.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_wire::v1;

fuzz_target!(|bytes: &[u8]| {
    let Ok(batch) = v1::decode_fragments(bytes) else { return };
    let encoded = v1::encode_fragments(&batch);
    let again = v1::decode_fragments(&encoded).expect("an encoded batch decodes");
    assert_eq!(v1::encode_fragments(&again), encoded);
});
