//! Columns of ids: *Ids are sent as counters* in the parent module has the reason. *In*: ids.
//! *Out*: the origin (CPU and program) and the counter's difference of each. *Invariant*: every
//! 64-bit id survives, whatever generated it.

use super::Malformed;
use super::column::{Column, Delta};
use super::dictionary::Dictionary;
use super::message::Ids;
use crate::head_sampling::HeadSampling;
use crate::ids::{MIX_FIRST, MIX_SECOND, mix};

/// Bits of the counter; the upper bits are CPU and program.
const COUNTER_BITS: u32 = 44;
const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;

/// Returns the ratio or reason of this code; none of an unknown one.
pub(super) fn head_sampling(code: u32) -> Option<HeadSampling> {
    u8::try_from(code).ok().and_then(HeadSampling::from_code)
}

/// Returns the id of a word of origin and counter: splitmix64's finalizer keyed by the epoch, as
/// kprobe-ebpf computes it.
fn scramble(word: u64, epoch: u64) -> u64 {
    mix(word ^ epoch)
}

/// Returns the word of origin and counter of an id: the inverse of [`scramble`].
fn unscramble(id: u64, epoch: u64) -> u64 {
    let mut z = unshift(id, 31);
    z = unshift(z.wrapping_mul(inverse(MIX_SECOND)), 27);
    z = unshift(z.wrapping_mul(inverse(MIX_FIRST)), 30);
    z ^ epoch
}

/// Inverts `z ^ z >> by`, which leaves the upper `by` bits of `z` unchanged.
fn unshift(z: u64, by: u32) -> u64 {
    z ^ (z >> by) ^ (z >> (2 * by)) ^ z.checked_shr(3 * by).unwrap_or(0)
}

/// Returns the inverse of an odd number modulo 2^64. Newton's iteration starts with 3 correct bits
/// and doubles them in each round.
const fn inverse(of: u64) -> u64 {
    let mut found = of;
    let mut round = 0;
    while round < 5 {
        found = found.wrapping_mul(2u64.wrapping_sub(of.wrapping_mul(found)));
        round += 1;
    }
    found
}

/// Origins of the ids of a batch under construction.
pub(super) struct Origins {
    epoch: u64,
    origins: Dictionary<u32>,
    /// First counter of each origin.
    first: Vec<u64>,
}

/// Writer of a column of ids.
#[derive(Default)]
pub(super) struct IdWriter {
    ids: Ids,
    /// Last counter of each origin; none before its first id.
    last: Vec<Option<Delta>>,
}

impl Origins {
    pub(super) fn new(epoch: u64) -> Self {
        Origins { epoch, origins: Dictionary::new(), first: Vec::new() }
    }

    /// Appends an id to a column.
    pub(super) fn put(&mut self, column: &mut IdWriter, id: u64) {
        let word = unscramble(id, self.epoch);
        let origin = self.origins.intern((word >> COUNTER_BITS) as u32);
        let (counter, index) = (word & COUNTER_MAX, origin as usize);
        if index == self.first.len() {
            self.first.push(counter);
        }
        if column.last.len() <= index {
            column.last.resize_with(index + 1, || None);
        }
        let last = column.last[index].get_or_insert_with(|| Delta::from(self.first[index]));
        column.ids.origin.push(origin);
        column.ids.counter.push(last.encode(counter));
    }

    /// Returns the dictionary for the batch.
    pub(super) fn end(self) -> (Vec<u32>, Vec<u64>) {
        (self.origins.values().to_vec(), self.first)
    }
}

impl IdWriter {
    pub(super) fn end(self) -> Ids {
        self.ids
    }
}

/// Origins of the ids of a batch being decoded.
pub(super) struct IdOrigins<'a> {
    epoch: u64,
    origins: &'a [u32],
    first: &'a [u64],
}

/// Reader of a column of ids.
pub(super) struct IdReader<'a> {
    origin: Column<'a, u32>,
    counter: Column<'a, i64>,
    last: Vec<Option<Delta>>,
}

impl<'a> IdOrigins<'a> {
    pub(super) fn new(epoch: u64, origins: &'a [u32], first: &'a [u64]) -> Result<Self, Malformed> {
        if origins.len() != first.len() {
            return Err(Malformed::Short("EventBatch.counters"));
        }
        Ok(IdOrigins { epoch, origins, first })
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

    /// Returns the next id.
    pub(super) fn next(&mut self, dictionaries: &IdOrigins<'_>) -> Result<u64, Malformed> {
        let (origin, difference) = (*self.origin.next()?, *self.counter.next()?);
        let index = origin as usize;
        let refuse = || self.origin.refuse(origin.into());
        let (upper, first) =
            dictionaries.origins.get(index).zip(dictionaries.first.get(index)).ok_or_else(refuse)?;
        if self.last.len() <= index {
            self.last.resize_with(index + 1, || None);
        }
        let last = self.last[index].get_or_insert_with(|| Delta::from(*first));
        let counter = last.decode(difference);
        if counter > COUNTER_MAX {
            return Err(self.counter.refuse(counter));
        }
        Ok(scramble(u64::from(*upper) << COUNTER_BITS | counter, dictionaries.epoch))
    }

    /// Returns the next id if `present`.
    pub(super) fn next_if(
        &mut self,
        present: bool,
        dictionaries: &IdOrigins<'_>,
    ) -> Result<Option<u64>, Malformed> {
        present.then(|| self.next(dictionaries)).transpose()
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
        fn unscramble_inverts_scramble(word: u64, epoch: u64) {
            prop_assert_eq!(unscramble(scramble(word, epoch), epoch), word);
            prop_assert_eq!(scramble(unscramble(word, epoch), epoch), word);
        }
    }

    /// kprobe-ebpf has the same constants; no test here can call its code.
    #[test]
    fn scramble_is_splitmix64s_finalizer() {
        // The first output of splitmix64 seeded with 0 is the finalizer of its increment.
        assert_eq!(scramble(0x9e37_79b9_7f4a_7c15, 0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn consecutive_ids_of_one_origin_are_small_deltas() {
        let (epoch, origin) = (0x1234_5678_9abc_def0, 5_u64 << 48 | 3 << 44);
        let (mut origins, mut column) = (Origins::new(epoch), IdWriter::default());
        (1000..1004).for_each(|counter| origins.put(&mut column, scramble(origin | counter, epoch)));
        let ids = column.end();
        assert_eq!((ids.origin, ids.counter), (vec![0; 4], vec![0, 1, 1, 1]));
        assert_eq!(origins.end(), (vec![5 << 4 | 3], vec![1000]));
    }
}
