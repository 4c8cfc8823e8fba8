//! String dictionary of an event batch.

use std::collections::HashMap;

/// Number of strings found by address before hashing. A power of two.
const LATEST: usize = 1 << LATEST_BITS;
const LATEST_BITS: u32 = 10;

/// Distinct strings of a batch. Users choose some of them (paths, program names), so the hash is
/// keyed.
///
/// Nearly all lookups repeat a recent one with the very same bytes: tag keys are constants, service
/// names are shared. So recent strings are found by address. All strings are borrowed for the
/// lifetime of the dictionary, so an address always denotes the same string.
pub(super) struct InternedStrings<'a> {
    indices: HashMap<&'a str, u32>,
    values: Vec<&'a str>,
    latest: [(*const u8, usize, u32); LATEST],
}

impl Default for InternedStrings<'_> {
    fn default() -> Self {
        let latest = [(std::ptr::null(), 0, 0); LATEST];
        InternedStrings { indices: HashMap::new(), values: Vec::new(), latest }
    }
}

impl<'a> InternedStrings<'a> {
    /// Returns the index of `string`, adding it if it is new.
    pub(super) fn intern(&mut self, string: &'a str) -> u32 {
        let (at, length) = (string.as_ptr(), string.len());
        // Constants are adjacent in memory, at any byte: a multiplication (2^64 / golden ratio)
        // spreads their addresses.
        let slot = ((at.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LATEST_BITS)) as usize;
        let (address, same_length, index) = self.latest[slot];
        if address == at && same_length == length {
            return index;
        }
        let index = self.intern_by_hash(string);
        self.latest[slot] = (at, length, index);
        index
    }

    fn intern_by_hash(&mut self, string: &'a str) -> u32 {
        let next = self.values.len() as u32;
        let index = *self.indices.entry(string).or_insert(next);
        if index == next {
            self.values.push(string);
        }
        index
    }
    /// Returns the dictionary for the batch.
    pub(super) fn end(self) -> Vec<String> {
        self.values.into_iter().map(str::to_owned).collect()
    }
}
