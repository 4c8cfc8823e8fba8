//! A batch's dictionary of words: of events as of pieces.

use std::collections::HashMap;

/// Words looked for by where they lie before they are hashed. A power of two.
const LATEST: usize = 1 << LATEST_BITS;
const LATEST_BITS: u32 = 10;

/// Each word once. Users choose some of them (paths, names of programs), so they are hashed with a key.
///
/// Nearly all are one that was met just before, and the very same bytes: a tag's key is a constant, a service's name is shared. So the
/// latest are known by their address. All are borrowed until the end, so an address means the same word as long as this lives.
pub(super) struct Words<'a> {
    places: HashMap<&'a str, u32>,
    said: Vec<&'a str>,
    latest: [(*const u8, usize, u32); LATEST],
}

impl Default for Words<'_> {
    fn default() -> Self {
        let latest = [(std::ptr::null(), 0, 0); LATEST];
        Words { places: HashMap::new(), said: Vec::new(), latest }
    }
}

impl<'a> Words<'a> {
    /// Where it lies.
    pub(super) fn place(&mut self, word: &'a str) -> u32 {
        let (at, length) = (word.as_ptr(), word.len());
        // Constants lie close together, at any byte: a multiplication (2^64 / golden ratio) spreads their addresses.
        let slot = ((at.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LATEST_BITS)) as usize;
        let (known, same, place) = self.latest[slot];
        if known == at && same == length {
            return place;
        }
        let place = self.place_by_hash(word);
        self.latest[slot] = (at, length, place);
        place
    }

    fn place_by_hash(&mut self, word: &'a str) -> u32 {
        let next = self.said.len() as u32;
        let place = *self.places.entry(word).or_insert(next);
        if place == next {
            self.said.push(word);
        }
        place
    }
    /// The dictionary, for the batch.
    pub(super) fn end(self) -> Vec<String> {
        self.said.into_iter().map(str::to_owned).collect()
    }
}
