//! Ids as they were counted: see *Ids cost nothing* of the module above.

use super::Malformed;
use super::column::{Column, Delta};
use super::dictionary::Dictionary;
use super::message::Ids;
use crate::ids::{MIX_FIRST, MIX_SECOND, mix};

/// Bits of the counter; above it are CPU and program.
const COUNTER_BITS: u32 = 44;
const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;

/// The id of a word: splitmix64's finalizer keyed by the epoch, as `mint` of kprobe-ebpf/src/local.rs.
fn mint(word: u64, epoch: u64) -> u64 {
    mix(word ^ epoch)
}

/// The word of an id.
fn unmint(id: u64, epoch: u64) -> u64 {
    let mut z = unshift(id, 31);
    z = unshift(z.wrapping_mul(inverse(MIX_SECOND)), 27);
    z = unshift(z.wrapping_mul(inverse(MIX_FIRST)), 30);
    z ^ epoch
}

/// Undoes `z ^ z >> by`, of which the upper bits are the original's.
fn unshift(z: u64, by: u32) -> u64 {
    z ^ (z >> by) ^ (z >> (2 * by)) ^ z.checked_shr(3 * by).unwrap_or(0)
}

/// The number that times this odd one is 1 in 64 bits: Newton's iteration doubles the bits that are right, from 3.
const fn inverse(of: u64) -> u64 {
    let mut found = of;
    let mut round = 0;
    while round < 5 {
        found = found.wrapping_mul(2u64.wrapping_sub(of.wrapping_mul(found)));
        round += 1;
    }
    found
}

/// Where the ids of a batch come from.
pub(super) struct Origins {
    epoch: u64,
    origins: Dictionary<u32>,
    /// The first counter of each.
    first: Vec<u64>,
}

/// A column of ids while it is written.
#[derive(Default)]
pub(super) struct IdWriter {
    ids: Ids,
    /// Of each origin.
    last: Vec<Option<Delta>>,
}

impl Origins {
    pub(super) fn new(epoch: u64) -> Self {
        Origins { epoch, origins: Dictionary::new(), first: Vec::new() }
    }

    /// Appends an id to a column.
    pub(super) fn put(&mut self, column: &mut IdWriter, id: u64) {
        let word = unmint(id, self.epoch);
        let origin = self.origins.place((word >> COUNTER_BITS) as u32);
        let (counter, place) = (word & COUNTER_MAX, origin as usize);
        if place == self.first.len() {
            self.first.push(counter);
        }
        if column.last.len() <= place {
            column.last.resize_with(place + 1, || None);
        }
        let last = column.last[place].get_or_insert_with(|| Delta::from(self.first[place]));
        column.ids.origin.push(origin);
        column.ids.counter.push(last.of(counter));
    }

    /// The dictionary, for the batch.
    pub(super) fn end(self) -> (Vec<u32>, Vec<u64>) {
        (self.origins.values().to_vec(), self.first)
    }
}

impl IdWriter {
    pub(super) fn end(self) -> Ids {
        self.ids
    }
}

/// The dictionary while it is read.
pub(super) struct Dictionaries<'a> {
    epoch: u64,
    origins: &'a [u32],
    first: &'a [u64],
}

/// A column of ids while it is read.
pub(super) struct IdReader<'a> {
    origin: Column<'a, u32>,
    counter: Column<'a, i64>,
    last: Vec<Option<Delta>>,
}

impl<'a> Dictionaries<'a> {
    pub(super) fn new(epoch: u64, origins: &'a [u32], first: &'a [u64]) -> Result<Self, Malformed> {
        if origins.len() != first.len() {
            return Err(Malformed::Short("EventBatch.counters"));
        }
        Ok(Dictionaries { epoch, origins, first })
    }
}

impl<'a> IdReader<'a> {
    pub(super) fn new(ids: &'a Ids, name: &'static str) -> Self {
        IdReader {
            origin: Column::new(&ids.origin, name),
            counter: Column::new(&ids.counter, name),
            last: Vec::new(),
        }
    }

    /// The next id.
    pub(super) fn next(&mut self, dictionaries: &Dictionaries<'_>) -> Result<u64, Malformed> {
        let (origin, difference) = (*self.origin.next()?, *self.counter.next()?);
        let place = origin as usize;
        let refuse = || self.origin.refuse(origin.into());
        let (upper, first) =
            dictionaries.origins.get(place).zip(dictionaries.first.get(place)).ok_or_else(refuse)?;
        if self.last.len() <= place {
            self.last.resize_with(place + 1, || None);
        }
        let last = self.last[place].get_or_insert_with(|| Delta::from(*first));
        let counter = last.undo(difference);
        if counter > COUNTER_MAX {
            return Err(self.counter.refuse(counter));
        }
        Ok(mint(u64::from(*upper) << COUNTER_BITS | counter, dictionaries.epoch))
    }

    /// The next id, if it is said that there is one.
    pub(super) fn next_if(
        &mut self,
        there: bool,
        dictionaries: &Dictionaries<'_>,
    ) -> Result<Option<u64>, Malformed> {
        there.then(|| self.next(dictionaries)).transpose()
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        self.origin.end()?;
        self.counter.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_minted_is_undone(word: u64, epoch: u64) {
            prop_assert_eq!(unmint(mint(word, epoch), epoch), word);
            prop_assert_eq!(mint(unmint(word, epoch), epoch), word);
        }
    }

    /// The same numbers stand in kprobe-ebpf/src/local.rs, which no test here can call.
    #[test]
    fn minting_is_splitmix64s_finalizer() {
        // The first output of splitmix64 seeded with 0 is the finalizer of its increment.
        assert_eq!(mint(0x9e37_79b9_7f4a_7c15, 0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn ids_of_one_origin_are_small_numbers() {
        let (epoch, origin) = (0x1234_5678_9abc_def0, 5_u64 << 48 | 3 << 44);
        let (mut origins, mut column) = (Origins::new(epoch), IdWriter::default());
        (1000..1004).for_each(|counter| origins.put(&mut column, mint(origin | counter, epoch)));
        let ids = column.end();
        assert_eq!((ids.origin, ids.counter), (vec![0; 4], vec![0, 1, 1, 1]));
        assert_eq!(origins.end(), (vec![5 << 4 | 3], vec![1000]));
    }
}
