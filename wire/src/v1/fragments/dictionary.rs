//! String dictionary of a record while fragments are pushed and dropped.
//!
//! *In*: strings of fragments that are dropped as soon as they are encoded. *Out*: the index of
//! each string, and the list. *Invariant*: each string has one index, in order of first use; a
//! string found by its address is the string stored there.
//!
//! Nearly all lookups repeat a recent string with the very same bytes: a tag key is a constant, a
//! path is shared. Such strings are found by address, without hashing. A constant keeps its
//! address, and the dictionary holds a reference to a shared string, so its memory is not reused.
//! The address of an owned string is meaningless once it is dropped, so it is hashed.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Number of strings found by address. A system call span has 40 strings, some of them of the last
/// file: of 60 in 1,024 slots, about 2 collide.
const LATEST: usize = 1 << LATEST_BITS;
const LATEST_BITS: u32 = 10;

/// Distinct strings of a record. Users choose some of them (paths, program names), so the hash is
/// keyed.
#[derive(Debug)]
pub(super) struct Dictionary {
    indices: HashMap<Interned, u32>,
    values: Vec<Interned>,
    /// References to shared strings whose content another string already provides.
    pinned: Vec<Arc<str>>,
    /// Maximum bytes of all strings in a record.
    bytes: usize,
    latest: Box<[Latest; LATEST]>,
}

#[derive(Clone, Copy, Debug)]
struct Latest {
    at: usize,
    length: u32,
    index: u32,
}

/// String that stays at its address.
#[derive(Clone, Debug)]
enum Interned {
    Constant(&'static str),
    Shared(Arc<str>),
}

impl Interned {
    fn as_str(&self) -> &str {
        match self {
            Interned::Constant(text) => text,
            Interned::Shared(text) => text,
        }
    }
}

impl Borrow<str> for Interned {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl Hash for Interned {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialEq for Interned {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Interned {}

impl Default for Dictionary {
    fn default() -> Self {
        // No string has the address zero.
        let latest = Box::new([Latest { at: 0, length: 0, index: 0 }; LATEST]);
        Dictionary { indices: HashMap::new(), values: Vec::new(), pinned: Vec::new(), bytes: 0, latest }
    }
}

impl Dictionary {
    /// Returns the index of a name or key.
    #[allow(clippy::ptr_arg, reason = "the ownership decides how to intern")]
    pub(super) fn name(&mut self, name: &Cow<'static, str>) -> u32 {
        match name {
            Cow::Borrowed(constant) => self.intern_by_address(constant, || Interned::Constant(constant)),
            Cow::Owned(owned) => self.owned(owned),
        }
    }

    /// Returns the index of a shared string.
    pub(super) fn shared(&mut self, text: &Arc<str>) -> u32 {
        self.intern_by_address(text, || Interned::Shared(text.clone()))
    }

    /// Returns the index of a string that the caller drops.
    pub(super) fn owned(&mut self, text: &str) -> u32 {
        match self.indices.get(text) {
            Some(index) => *index,
            None => self.add(Interned::Shared(text.into())),
        }
    }

    #[inline]
    fn intern_by_address(&mut self, text: &str, retain: impl Fn() -> Interned) -> u32 {
        let (at, length) = (text.as_ptr().addr(), text.len() as u32);
        // Constants are adjacent in memory, at any byte: a multiplication (2^64 / golden ratio)
        // spreads their addresses.
        let slot = ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LATEST_BITS)) as usize;
        let latest = self.latest[slot];
        if latest.at == at && latest.length == length {
            return latest.index;
        }
        let (index, pinned) = match self.indices.get_key_value(text) {
            Some((interned, index)) => (*index, interned.as_str().as_ptr().addr() == at),
            None => (self.add(retain()), true),
        };
        if pinned || self.pin(retain()) {
            self.latest[slot] = Latest { at, length, index };
        }
        index
    }

    /// Pins a duplicate of an interned string at its address. Returns whether the address stays
    /// valid.
    fn pin(&mut self, string: Interned) -> bool {
        match string {
            Interned::Constant(_) => true,
            Interned::Shared(text) if self.pinned.len() < LATEST => {
                self.pinned.push(text);
                true
            }
            Interned::Shared(_) => false,
        }
    }

    fn add(&mut self, string: Interned) -> u32 {
        let index = self.values.len() as u32;
        self.bytes += encoded_bytes(string.as_str());
        self.values.push(string.clone());
        self.indices.insert(string, index);
        index
    }

    /// Returns the maximum bytes of all strings in a record.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the strings for the record.
    pub(super) fn end(self) -> Vec<String> {
        self.values.iter().map(|string| string.as_str().to_owned()).collect()
    }
}

/// Returns the maximum bytes of a new string in a record: key, length, content.
pub(super) fn encoded_bytes(string: &str) -> usize {
    string.len() + 6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_at_a_reused_address_is_distinct() {
        let mut dictionary = Dictionary::default();
        // The allocator reuses freed memory of this length at once.
        let indices: Vec<u32> = (0..1_000)
            .map(|n| {
                let shared: Arc<str> = format!("word {:04}", n % 100).into();
                let owned: Cow<'static, str> = format!("name {:04}", n % 100).into();
                let indices = (dictionary.shared(&shared), dictionary.name(&owned));
                indices.0.max(indices.1)
            })
            .collect();
        assert_eq!(dictionary.values.len(), 200);
        assert!(indices.iter().enumerate().all(|(n, index)| *index as usize == 2 * (n % 100) + 1));
    }

    #[test]
    fn shared_string_equals_constant() {
        let mut dictionary = Dictionary::default();
        let (constant, shared): (Cow<'static, str>, Arc<str>) = ("read".into(), "read".into());
        let at = dictionary.name(&constant);
        assert_eq!(
            (dictionary.shared(&shared), dictionary.owned("read"), dictionary.values.len()),
            (at, at, 1)
        );
    }
}
