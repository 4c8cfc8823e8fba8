//! Ratio by which a tracer records the roots of traces.

use serde::{Deserialize, Serialize};

use crate::ids::TraceId;

/// Reason for which a root was recorded, whether or not its trace's id draws it: the kernel side deferred the decision until it ended
/// (`blkkin_probe_abi::deferred`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KeptFor {
    /// The operation took as long as a rule's time.
    Slow,
    /// The operation or a part of it failed.
    Failed,
    /// The operation had more records than the kernel side has room for.
    Large,
}

impl KeptFor {
    /// Returns the name, as tags and metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            KeptFor::Slow => "slow",
            KeptFor::Failed => "failed",
            KeptFor::Large => "large",
        }
    }
}

/// Ratio of head sampling: one root in a power of two. The decision is a function of the trace's id
/// (`blkkin_probe_abi::head_sampling`). Or the reason for which each such root is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadSampling(u8);

impl HeadSampling {
    /// Each root is recorded.
    pub const ALL: HeadSampling = HeadSampling(0);
    const SLOW: u8 = 129;
    const FAILED: u8 = 130;
    const LARGE: u8 = 131;
    /// Smallest ratio: one root in 1,048,576.
    pub const MIN_RATIO: HeadSampling = HeadSampling(20);

    /// Returns the ratio of one in 2 to the power of `log2`; none below [`HeadSampling::MIN_RATIO`].
    pub const fn from_log2(log2: u8) -> Option<HeadSampling> {
        if log2 <= Self::MIN_RATIO.0 { Some(HeadSampling(log2)) } else { None }
    }

    /// Returns the value of this code, as records have it: a binary logarithm, or from 129 on a reason.
    pub const fn from_code(code: u8) -> Option<HeadSampling> {
        match code {
            Self::SLOW..=Self::LARGE => Some(HeadSampling(code)),
            _ => HeadSampling::from_log2(code),
        }
    }

    /// Returns the code of [`HeadSampling::from_code`].
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns why the root was kept; none if its trace's id decided.
    pub const fn kept_for(self) -> Option<KeptFor> {
        match self.0 {
            Self::SLOW => Some(KeptFor::Slow),
            Self::FAILED => Some(KeptFor::Failed),
            Self::LARGE => Some(KeptFor::Large),
            _ => None,
        }
    }

    /// Returns the ratio of one in 2 to the power of `log2`, or [`HeadSampling::MIN_RATIO`] below it.
    #[inline]
    pub const fn at_least(log2: u8) -> HeadSampling {
        if log2 <= Self::MIN_RATIO.0 { HeadSampling(log2) } else { Self::MIN_RATIO }
    }

    /// Returns the ratio of one in `n`; none unless it is a power of two, and not below
    /// [`HeadSampling::MIN_RATIO`].
    pub fn from_one_in(n: u64) -> Option<HeadSampling> {
        n.is_power_of_two().then(|| HeadSampling::from_log2(n.trailing_zeros() as u8)).flatten()
    }

    /// Returns N, where one root in N is recorded.
    pub const fn one_in(self) -> u64 {
        1 << self.log2()
    }

    /// Returns the binary logarithm of N.
    pub const fn log2(self) -> u8 {
        if self.0 <= Self::MIN_RATIO.0 { self.0 } else { 0 }
    }

    /// Returns whether the ratio keeps the trace with this id.
    pub fn keeps(self, trace: TraceId) -> bool {
        trace.0 as u64 & ((1 << 56) - 1) >= self.threshold()
    }

    /// Returns OpenTelemetry's rejection threshold, a number of 56 bits.
    fn threshold(self) -> u64 {
        (1 << 56) - (1 << (56 - self.log2()))
    }

    /// Returns the W3C trace state with OpenTelemetry's threshold (*TraceState: Probability Sampling*,
    /// opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling); none if each root is recorded,
    /// for whatever reason.
    pub fn trace_state(self) -> Option<String> {
        let threshold = self.threshold();
        (self != HeadSampling::ALL).then(|| {
            let digits = format!("{threshold:014x}");
            // A threshold of 0 has one digit.
            let digits = Some(digits.trim_end_matches('0')).filter(|digits| !digits.is_empty());
            format!("ot=th:{}", digits.unwrap_or("0"))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn ratios_are_powers_of_two() {
        assert_eq!(HeadSampling::from_one_in(1), Some(HeadSampling::ALL));
        assert_eq!(HeadSampling::from_one_in(64).unwrap().one_in(), 64);
        assert_eq!(HeadSampling::from_one_in(1 << 20), Some(HeadSampling::MIN_RATIO));
        assert_eq!([0, 3, 100, 1 << 21].map(HeadSampling::from_one_in), [None; 4]);
        assert_eq!(HeadSampling::from_log2(21), None);
    }

    #[test]
    fn a_reason_keeps_each_trace() {
        let reasons: Vec<_> =
            (0..=255).filter_map(HeadSampling::from_code).filter_map(HeadSampling::kept_for).collect();
        assert_eq!(reasons, [KeptFor::Slow, KeptFor::Failed, KeptFor::Large]);
        let slow = HeadSampling::from_code(129).unwrap();
        assert!(slow != HeadSampling::ALL && slow.one_in() == 1 && slow.keeps(TraceId(0)));
        assert_eq!((slow.code(), slow.trace_state().unwrap()), (129, "ot=th:0".to_owned()));
        assert_eq!([21, 128, 132, 255].map(HeadSampling::from_code), [None; 4]);
    }

    #[test]
    fn a_ratio_keeps_the_highest_ids() {
        let half = HeadSampling::from_one_in(2).unwrap();
        let keeps = |id: u128| half.keeps(TraceId(id));
        assert!(keeps(1 << 55) && !keeps((1 << 55) - 1) && !keeps(0xff << 56), "the last 56 bits decide");
        assert!(HeadSampling::ALL.keeps(TraceId(0)));
    }

    /// The examples of the specification: 1/2 is 8, 1/4 is c, 1/64 is fc.
    #[test]
    fn the_threshold_is_that_of_the_specification() {
        let state = |n| HeadSampling::from_one_in(n).unwrap().trace_state();
        assert_eq!(state(1), None);
        assert_eq!([2, 4, 64].map(|n| state(n).unwrap()), ["ot=th:8", "ot=th:c", "ot=th:fc"]);
        assert_eq!(state(1 << 20).unwrap(), "ot=th:fffff");
    }
}
