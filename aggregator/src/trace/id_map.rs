//! Hash maps whose keys are ids.
//!
//! *Invariant*: hashing changes the speed only. Keys are compared, so a bad hash makes a map slow
//! and not wrong.
//!
//! *Rejected*: SipHash, the default. It costs more than the look-up, and protects against keys that
//! an attacker chooses; no program chooses these ids.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use blkkin_wire::ids::SpanId;

/// A map keyed by span id.
///
/// The hash of a span id is the id. This is sound because an id is the image of a counter under a
/// bijection that mixes all 64 bits, keyed by a seed that is drawn at each start. Low bits (the
/// bucket) and high bits (the tag within it) are as good as a hash's.
pub(crate) type SpanMap<V> = HashMap<SpanId, V, BuildHasherDefault<PassThrough>>;

/// A map keyed by other ids, which are not well mixed (inode numbers count up).
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<Folded>>;

/// Hasher that returns the last word written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassThrough(u64);

impl Hasher for PassThrough {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// Hasher that folds in each word by a multiplication to 128 bits and combines both halves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        // 2^64 / golden ratio, odd. Added first so that zero changes too.
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from((self.0 ^ word).wrapping_add(K)) * u128::from(K);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
