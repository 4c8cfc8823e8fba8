//! Set of pages within the ranges of a bio.

use std::ops::Range;

/// Bytes of a page. A file system with smaller blocks writes parts of a page; a write into one part
/// then counts for the page.
const PAGE: u64 = 4_096;

/// Pages of ranges of a file. Each range has its own bits.
#[derive(Clone, Debug)]
pub(crate) struct PageSet(Vec<RangeSet>);

#[derive(Clone, Debug)]
struct RangeSet {
    range: Range<u64>,
    bits: Vec<u64>,
}

impl PageSet {
    /// Creates an empty set.
    pub(crate) fn new(ranges: &[Range<u64>]) -> PageSet {
        PageSet(ranges.iter().cloned().map(RangeSet::new).collect())
    }

    /// Adds the pages that `part` touches. Returns whether one of them is new.
    pub(crate) fn insert(&mut self, part: &Range<u64>) -> bool {
        self.0.iter_mut().fold(false, |new, set| set.insert(part) | new)
    }

    /// Returns the number of bytes of the ranges in pages that are not in the set.
    pub(crate) fn bytes_outside(&self) -> u64 {
        self.0.iter().map(RangeSet::bytes_outside).sum()
    }
}

impl RangeSet {
    fn new(range: Range<u64>) -> RangeSet {
        let pages = range.end.div_ceil(PAGE).saturating_sub(range.start / PAGE);
        RangeSet { range, bits: vec![0; pages.div_ceil(64) as usize] }
    }

    fn insert(&mut self, part: &Range<u64>) -> bool {
        let (start, end) = (part.start.max(self.range.start), part.end.min(self.range.end));
        let first = self.range.start / PAGE;
        let mut new = false;
        let pages = if start < end { start / PAGE..end.div_ceil(PAGE) } else { 0..0 };
        for index in pages.map(|page| page - first) {
            if let Some(word) = self.bits.get_mut(index as usize / 64) {
                new |= *word >> (index % 64) & 1 == 0;
                *word |= 1 << (index % 64);
            }
        }
        new
    }

    fn bytes_outside(&self) -> u64 {
        let first = self.range.start / PAGE;
        let outside = |page: &u64| {
            let index = page - first;
            self.bits.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 0)
        };
        let bytes = |page: u64| {
            ((page + 1) * PAGE).min(self.range.end).saturating_sub((page * PAGE).max(self.range.start))
        };
        (first..self.range.end.div_ceil(PAGE)).filter(outside).map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_from_its_first_byte() {
        let range = 4_096..4_096 + 70 * 4_096;
        let mut set = PageSet::new(std::slice::from_ref(&range));
        assert_eq!(set.bytes_outside(), 70 * 4_096);
        assert!(set.insert(&(4_100..4_101)) && !set.insert(&(8_191..8_192)));
        assert!(set.insert(&(0..1 << 40)));
        assert_eq!(set.bytes_outside(), 0);
    }

    #[test]
    fn ranges_with_parts_of_pages_have_their_own_bytes() {
        let mut set = PageSet::new(&[1_024..5_120, 8_192..8_200]);
        assert_eq!(set.bytes_outside(), 4_104);
        assert!(set.insert(&(0..2_048)));
        assert_eq!(set.bytes_outside(), 1_032);
        assert!(!set.insert(&(5_120..8_192)) && set.insert(&(8_192..8_193)));
        assert_eq!(set.bytes_outside(), 1_024);
    }
}
