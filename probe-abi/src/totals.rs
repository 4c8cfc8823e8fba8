//! Totals that the eBPF side keeps of block requests, instead of a record of each: counts, bytes, times and
//! histograms by key.
//!
//! A [`TotalKey`] has the submitter of a request, the disk and the operation. [`KeySet`]s have the keys, eight to a
//! set. The position of a key is the position of its [`Total`], of which each CPU has its own. Position 0 has no key:
//! it counts the requests whose key found no room.

use crate::plain;

/// Keys in a set.
pub const KEY_WAYS: usize = 8;
/// Sets of keys: 1,024 keys.
pub const KEY_SETS: usize = 128;
/// Number of totals: one of each key, and the one of requests without a key.
pub const TOTALS: usize = KEY_SETS * KEY_WAYS + 1;
/// Position of the total of requests without a key.
pub const OTHERS: u32 = 0;

/// Sets of requests in flight: 32,768 requests, 1 MiB.
pub const TOTAL_REQUEST_SETS: usize = 8_192;

/// State of a free place for a key.
pub const KEY_FREE: u64 = 0;
/// State of a place whose key is being written.
pub const KEY_CLAIMED: u64 = 1;
/// State of a place that has a key.
pub const KEY_READY: u64 = 2;

/// Times below this many ns share a bucket: 64 ns.
const FIRST_POWER: u32 = 6;
/// Buckets of each power of two: 8. A time differs from the middle of its bucket by at most 1/16 of itself, 6.25 %.
const PARTS_BITS: u32 = 3;
/// Powers of two with buckets of their own: up to 2^37 ns, 137 s.
const POWERS: u32 = 31;
/// Number of buckets: the times below 64 ns, 31 powers of two in eight parts each, and longer times.
pub const BUCKETS: usize = (POWERS << PARTS_BITS) as usize + 2;

/// Identifies what is counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TotalKey {
    /// Name of the process that submitted the requests, NUL padded; `unknown` where no hook saw it.
    pub program: [u64; 2],
    /// Cgroup of the process; 0 if unknown.
    pub cgroup: u64,
    /// Disk, in the kernel's encoding.
    pub disk: u32,
    /// Operation: the low byte of `cmd_flags`.
    pub operation: u32,
}

/// Place of a key.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct KeyPlace {
    /// `KEY_*`.
    pub state: u64,
    /// Key; valid with KEY_READY.
    pub key: TotalKey,
}

/// Places of keys with the same hash.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct KeySet {
    /// Places, of which free ones follow those in use.
    pub places: [KeyPlace; KEY_WAYS],
}

/// Request in flight.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TotalRequest {
    /// Begin: its allocation. Before Linux 6.5 exactly the kernel's `start_time_ns`, with which it is compared, or the
    /// issue if that is 0.
    pub start_ns: u64,
    /// Issue to the device; 0 before.
    pub issue_ns: u64,
    /// Bytes at its issue.
    pub bytes: u32,
    /// Position of its total.
    pub total: u32,
}

/// Counts of the completed requests of one key on one CPU.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Total {
    /// Completed requests.
    pub requests: u64,
    /// Bytes of the completed requests.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// ns between allocation and issue.
    pub queue_ns: u64,
    /// ns between issue and completion.
    pub device_ns: u64,
    /// Requests by the time between allocation and issue: see [`bucket_of`]. A count wraps after 2^32 requests, so
    /// the reader adds differences.
    pub queue: [u32; BUCKETS],
    /// Requests by the time between issue and completion.
    pub device: [u32; BUCKETS],
}

impl Default for Total {
    fn default() -> Self {
        Total {
            requests: 0,
            bytes: 0,
            errors: 0,
            queue_ns: 0,
            device_ns: 0,
            queue: [0; BUCKETS],
            device: [0; BUCKETS],
        }
    }
}

plain! { TotalKey = 32, KeyPlace = 40, KeySet = 320, TotalRequest = 24, Total = 2_040 }

/// Returns the set of a key.
#[inline(always)]
pub const fn set_of(key: &TotalKey) -> u32 {
    let mut hash = key.program[0].wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key.program[1].rotate_left(29);
    hash ^= (key.cgroup << 32 | key.disk as u64).wrapping_add((key.operation as u64) << 24);
    // The finalizer of splitmix64.
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash >> 40) as u32 & (KEY_SETS as u32 - 1)
}

/// Returns the position of the total of a key's place.
#[inline(always)]
pub const fn position_of(set: u32, way: u32) -> u32 {
    set * KEY_WAYS as u32 + way + 1
}

/// Returns the bucket of a time.
#[inline(always)]
pub const fn bucket_of(ns: u64) -> usize {
    if ns < 1 << FIRST_POWER {
        return 0;
    }
    let power = 63 - ns.leading_zeros();
    if power >= FIRST_POWER + POWERS {
        return BUCKETS - 1;
    }
    let part = (ns >> (power - PARTS_BITS)) as u32 & ((1 << PARTS_BITS) - 1);
    (((power - FIRST_POWER) << PARTS_BITS) + part) as usize + 1
}

/// Returns the shortest time of a bucket, and the shortest of the next one; none for the last bucket's end.
pub const fn bounds_of(bucket: usize) -> (u64, Option<u64>) {
    if bucket == 0 {
        return (0, Some(1 << FIRST_POWER));
    }
    if bucket >= BUCKETS - 1 {
        return (1 << (FIRST_POWER + POWERS), None);
    }
    let index = bucket as u32 - 1;
    let (power, part) = (FIRST_POWER + (index >> PARTS_BITS), index as u64 & ((1 << PARTS_BITS) - 1));
    let width = 1u64 << (power - PARTS_BITS);
    let low = (1 << power) + part * width;
    (low, Some(low + width))
}

/// Returns the bucket of the observation of this rank, of which 1 is the shortest. None with fewer observations.
pub fn bucket_at(histogram: &[u64; BUCKETS], rank: u64) -> Option<usize> {
    let mut sum = 0;
    histogram.iter().position(|count| {
        sum += count;
        sum >= rank
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_time_is_within_the_bounds_of_its_bucket() {
        let powers = (0..64).flat_map(|power| [0, 1, 3].map(|more| (1u64 << power) + more));
        let steps = (0..4_000).map(|step| step * step * step + step);
        for ns in powers.chain(steps).chain([63, 64, 65, (1 << 37) - 1, 1 << 37, u64::MAX]) {
            let (low, high) = bounds_of(bucket_of(ns));
            assert!(low <= ns && high.is_none_or(|high| ns < high), "{ns}: {low} to {high:?}");
        }
    }

    #[test]
    fn buckets_follow_each_other_and_their_middle_is_near() {
        let bounds: Vec<_> = (0..BUCKETS).map(bounds_of).collect();
        for pair in bounds.windows(2) {
            assert_eq!(pair[0].1, Some(pair[1].0));
        }
        for (low, high) in &bounds[1..BUCKETS - 1] {
            // The shortest time of a bucket is the farthest from the middle, in parts of itself.
            let width = high.map_or(u64::MAX, |high| high - low);
            assert!(width as f64 / 2.0 / *low as f64 <= 0.0625, "{low}");
        }
        // 100 ns to 100 s are not in the outermost buckets.
        assert!(bucket_of(100) > 0 && bucket_of(100_000_000_000) < BUCKETS - 1);
    }

    #[test]
    fn keys_spread_over_the_sets() {
        let mut counts = [0usize; KEY_SETS];
        for program in 0..16 {
            for disk in 0..4 {
                for operation in 0..4 {
                    let key = TotalKey {
                        program: [u64::from_ne_bytes(*b"program0") + (program << 56), 0],
                        cgroup: 4_711,
                        disk: 259 << 20 | disk,
                        operation,
                    };
                    counts[set_of(&key) as usize] += 1;
                }
            }
        }
        let fit: usize = counts.iter().map(|&count| count.min(KEY_WAYS)).sum();
        assert_eq!(fit, 256, "keys with a place");
    }
}
