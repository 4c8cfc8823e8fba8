//! LTTng's metadata (TSDL). Metadata in two parts give the same trace as in one.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_lttng_live::ctf::metadata::CtfTrace;

fuzz_target!(|bytes: &[u8]| {
    let Ok(whole) = CtfTrace::read(bytes) else { return };
    let mut parts = CtfTrace::default();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let appended = parts.append(first).and_then(|()| parts.append(second));
    appended.and_then(|()| parts.check_complete()).expect("the whole was accepted");
    assert_eq!(format!("{:?}", parts.streams), format!("{:?}", whole.streams));
});
