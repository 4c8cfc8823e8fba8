//! `v1::decode`: records of `blkkin.events`. What decodes encodes to bytes that decode to the same.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_wire::v1;

fuzz_target!(|bytes: &[u8]| {
    let Ok(decoded) = v1::decode(bytes) else { return };
    let encoded = v1::encode(&decoded.batch);
    let again = v1::decode(&encoded).expect("an encoded batch decodes");
    // Compared as bytes: a NaN does not equal itself.
    assert_eq!(v1::encode(&again.batch), encoded);
});
