//! A record's dictionary of words, while pieces come and go.
//!
//! *In*: words of pieces that are dropped as soon as they are written. *Out*: the place of each, and the list. *Invariant*: each word
//! has one place, in the order in which it was met first; a word found by its address is the word that lies there.
//!
//! Nearly all words are one that was met just before, and the very same bytes: a tag's key is a constant, a path is shared. So those are
//! looked for by their address, before anything is hashed. A constant lies where it lies for ever, and of a shared word the dictionary
//! keeps a share, so that nothing else can come to lie there. An owned word's address means nothing once it is dropped: it is hashed.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Words known by their address. A call's span has 40, and some are of the last file: of 60 in 1,024 places some 2 stand in each other's way.
const LATEST: usize = 1 << LATEST_BITS;
const LATEST_BITS: u32 = 10;

/// Each word once. Users choose some of them (paths, names of programs), so they are hashed with a key.
#[derive(Debug)]
pub(super) struct Dictionary {
    places: HashMap<Word, u32>,
    said: Vec<Word>,
    /// Shares of words that lie where others lie that are the same.
    shares: Vec<Arc<str>>,
    /// Of all words: what they take in a record.
    bytes: usize,
    latest: Box<[Latest; LATEST]>,
}

#[derive(Clone, Copy, Debug)]
struct Latest {
    at: usize,
    length: u32,
    place: u32,
}

/// A word that stays.
#[derive(Clone, Debug)]
enum Word {
    Constant(&'static str),
    Shared(Arc<str>),
}

impl Word {
    fn words(&self) -> &str {
        match self {
            Word::Constant(words) => words,
            Word::Shared(words) => words,
        }
    }
}

impl Borrow<str> for Word {
    fn borrow(&self) -> &str {
        self.words()
    }
}

impl Hash for Word {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

impl PartialEq for Word {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl Eq for Word {}

impl Default for Dictionary {
    fn default() -> Self {
        // No word lies at zero.
        let latest = Box::new([Latest { at: 0, length: 0, place: 0 }; LATEST]);
        Dictionary { places: HashMap::new(), said: Vec::new(), shares: Vec::new(), bytes: 0, latest }
    }
}

impl Dictionary {
    /// Where a name or a key lies.
    #[allow(clippy::ptr_arg, reason = "whether it is a constant is the question")]
    pub(super) fn name(&mut self, name: &Cow<'static, str>) -> u32 {
        match name {
            Cow::Borrowed(constant) => self.known(constant, || Word::Constant(constant)),
            Cow::Owned(owned) => self.owned(owned),
        }
    }

    /// Where shared words lie.
    pub(super) fn shared(&mut self, words: &Arc<str>) -> u32 {
        self.known(words, || Word::Shared(words.clone()))
    }

    /// Where words lie that nobody keeps.
    pub(super) fn owned(&mut self, words: &str) -> u32 {
        match self.places.get(words) {
            Some(place) => *place,
            None => self.add(Word::Shared(words.into())),
        }
    }

    #[inline]
    fn known(&mut self, words: &str, keep: impl Fn() -> Word) -> u32 {
        let (at, length) = (words.as_ptr().addr(), words.len() as u32);
        // Constants lie close together, at any byte: a multiplication (2^64 / golden ratio) spreads their addresses.
        let slot = ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LATEST_BITS)) as usize;
        let latest = self.latest[slot];
        if latest.at == at && latest.length == length {
            return latest.place;
        }
        let (place, stays) = match self.places.get_key_value(words) {
            Some((kept, place)) => (*place, kept.words().as_ptr().addr() == at),
            None => (self.add(keep()), true),
        };
        if stays || self.stays(keep()) {
            self.latest[slot] = Latest { at, length, place };
        }
        place
    }

    /// The same words may lie at several addresses: whether this one is sure to stay theirs.
    fn stays(&mut self, word: Word) -> bool {
        match word {
            Word::Constant(_) => true,
            Word::Shared(share) if self.shares.len() < LATEST => {
                self.shares.push(share);
                true
            }
            Word::Shared(_) => false,
        }
    }

    fn add(&mut self, word: Word) -> u32 {
        let place = self.said.len() as u32;
        self.bytes += in_record(word.words());
        self.said.push(word.clone());
        self.places.insert(word, place);
        place
    }

    /// What they take in a record, at the most.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The words, for the record.
    pub(super) fn end(self) -> Vec<String> {
        self.said.iter().map(|word| word.words().to_owned()).collect()
    }
}

/// What a word takes in a record at the most, if it is not there yet: a key, its length, itself.
pub(super) fn in_record(word: &str) -> usize {
    word.len() + 6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_lies_where_another_has_lain_is_another() {
        let mut dictionary = Dictionary::default();
        // Freed memory of this length is given out again at once.
        let places: Vec<u32> = (0..1_000)
            .map(|n| {
                let shared: Arc<str> = format!("word {:04}", n % 100).into();
                let owned: Cow<'static, str> = format!("name {:04}", n % 100).into();
                let places = (dictionary.shared(&shared), dictionary.name(&owned));
                places.0.max(places.1)
            })
            .collect();
        assert_eq!(dictionary.said.len(), 200);
        assert!(places.iter().enumerate().all(|(n, place)| *place as usize == 2 * (n % 100) + 1));
    }

    #[test]
    fn a_shared_word_is_the_same_as_the_constant() {
        let mut dictionary = Dictionary::default();
        let (constant, shared): (Cow<'static, str>, Arc<str>) = ("read".into(), "read".into());
        let at = dictionary.name(&constant);
        assert_eq!(
            (dictionary.shared(&shared), dictionary.owned("read"), dictionary.said.len()),
            (at, at, 1)
        );
    }
}
