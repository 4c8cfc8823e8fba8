//! Hashers for keys that are ids.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use blkkin_wire::ids::SpanId;

/// A map by span.
///
/// The hash of a span id is the id. That is sound because an id is the image of a counter under a bijection that
/// mixes all 64 bits, keyed by a seed that is drawn at each start: low bits (the bucket) and high bits (the tag
/// within it) are as good as a hash's, and no program chooses its ids. Were they ever bad, the map would be slow,
/// not wrong: keys are compared.
pub(crate) type SpanMap<V> = HashMap<SpanId, V, BuildHasherDefault<PassThrough>>;

/// A map by other ids, which are not well mixed (inode numbers count up).
pub(super) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<Folded>>;

/// Takes the last word written as it is.
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

/// Folds each word in by a multiplication to 128 bits whose halves are combined.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Folded(u64);

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
        // 2^64 / golden ratio, odd; added first so that zero moves too.
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from((self.0 ^ word).wrapping_add(K)) * u128::from(K);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
