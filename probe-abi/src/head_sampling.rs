//! Head sampling: which roots of traces the eBPF side records.
//!
//! *In*: the id of a root, and a ratio. *Out*: whether it is recorded. *Invariant*: the decision is
//! OpenTelemetry's consistent probability sampling (*Probability Sampling*, opentelemetry.io/docs/specs):
//! the randomness is the last 56 bits of the trace id, and a trace is kept if they are not below the
//! threshold. The last 64 bits of a trace's id are the id of its root span. So each tool that knows
//! the trace id decides alike, and a trace that a ratio keeps is kept by each greater ratio too.
//!
//! *The ratio* is one in a power of two: then the test is one shift, and a record has room for it.

/// Name of the map with one word: the binary logarithm of N, where one root in N is recorded.
pub const HEAD_SAMPLING_MAP: &str = "HEAD_SAMPLING";

/// Maximum of that logarithm: one root in 1,048,576.
pub const SAMPLING_MAX: u8 = 20;

/// Bit of the map's word: no root that begins now is sampled.
pub const PAUSED: u64 = 1 << 9;

/// Bits of a trace id that are no part of its randomness, of its last 64.
const NO_RANDOMNESS: u32 = 8;

/// Returns whether one root in 2 to the power of `sampling` includes the one with this id, the last
/// 64 bits of its trace's.
#[inline(always)]
pub const fn is_sampled(id: u64, sampling: u8) -> bool {
    // The threshold has as many leading ones.
    sampling == 0 || (!id << NO_RANDOMNESS) >> ((64 - sampling as u32) & 63) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decides by the specification: randomness and threshold are numbers of 56 bits.
    fn by_threshold(id: u64, sampling: u8) -> bool {
        let threshold = (1_u64 << 56) - (1 << (56 - sampling));
        id & ((1 << 56) - 1) >= threshold
    }

    #[test]
    fn a_decision_is_that_of_the_threshold() {
        let mut id = 1_u64;
        let mut kept = [0; 7];
        for _ in 0..100_000 {
            id = id.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            for sampling in 0..=SAMPLING_MAX {
                assert_eq!(is_sampled(id, sampling), by_threshold(id, sampling), "{id:x} {sampling}");
            }
            kept.iter_mut().enumerate().for_each(|(n, kept)| *kept += u64::from(is_sampled(id, n as u8)));
        }
        for (n, kept) in kept.iter().enumerate() {
            let expected = 100_000 >> n;
            assert!(kept.abs_diff(expected) < 500, "{kept} of {expected}");
        }
    }

    #[test]
    fn the_limits_are_exact() {
        for sampling in 1..=SAMPLING_MAX {
            let threshold = (1_u64 << 56) - (1 << (56 - sampling));
            assert!(is_sampled(threshold, sampling) && !is_sampled(threshold - 1, sampling));
            assert!(is_sampled(threshold | 0xab << 56, sampling), "the first 8 bits are no randomness");
        }
        assert!(is_sampled(0, 0));
    }
}
