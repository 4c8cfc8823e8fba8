//! Sampling of traces.
//!
//! *In*: the first fragment of a trace, or a late one. *Out*: whether the trace is sampled, and the
//! reason.
//!
//! *Invariant*: a trace is sampled as a whole. The ratio uses the trace id, so every member decides
//! alike. [`super::assemble`] remembers decisions that depend on the trace's content.
//!
//! A trace that failed or was slow, or that belongs to an application's sampled trace, is sampled
//! whatever the ratio decides, and its annotation states that it represents itself alone. A trace
//! sampled by the ratio represents `one_in` traces. An application's trace that the application
//! does *not* sample is sampled by the ratio like blkkin's own. If it is sampled, its calls are
//! exported and their parent spans are not.
//!
//! *Rejected*: a random draw for each fragment. Parts of one trace would get different decisions.

use std::borrow::Cow;

use blkkin_wire::clock::DurationNs;
use blkkin_wire::fragment::{Sampled, TraceFragment};
use blkkin_wire::ids::TraceId;
use serde::{Deserialize, Serialize};

/// Sampling rules. By default all traces are sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplingRules {
    /// Sampling ratio: one trace in this many. 0 and 1 sample all.
    pub one_in: u32,
    /// Samples traces with a failed span.
    pub errors: bool,
    /// Duration of the root above which a trace is sampled.
    pub slower_than: Option<DurationNs>,
    /// Samples traces that belong to an application's sampled trace.
    pub by_application: bool,
}

impl Default for SamplingRules {
    fn default() -> Self {
        SamplingRules { one_in: 1, errors: false, slower_than: None, by_application: false }
    }
}

/// Reason for sampling a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplingReason {
    /// Every trace is sampled.
    All,
    /// Sampled by the ratio.
    ByRatio,
    /// A span failed.
    Failed,
    /// The root was slow.
    Slow,
    /// The application samples the trace.
    ByApplication,
}

impl SamplingRules {
    /// Decides by the trace id alone.
    pub fn sample_by_ratio(&self, trace: TraceId) -> Option<SamplingReason> {
        match self.one_in {
            0 | 1 => Some(SamplingReason::All),
            n => (trace.sampling_hash() < u64::MAX / u64::from(n)).then_some(SamplingReason::ByRatio),
        }
    }

    /// Decides by the first fragment.
    pub fn sample_first(&self, fragment: &TraceFragment) -> Option<SamplingReason> {
        let failed = || fragment.spans.iter().any(|span| span.error.is_some());
        let took = || fragment.spans.first().map(|root| root.duration);
        match self.sample_by_ratio(fragment.trace) {
            Some(SamplingReason::All) => Some(SamplingReason::All),
            _ if self.errors && failed() => Some(SamplingReason::Failed),
            _ if self.slower_than.is_some_and(|than| took() > Some(than)) => Some(SamplingReason::Slow),
            _ => self.sample_late(fragment),
        }
    }

    /// Decides for a trace of which the first fragment is another.
    pub fn sample_late(&self, fragment: &TraceFragment) -> Option<SamplingReason> {
        match self.sample_by_ratio(fragment.trace) {
            Some(SamplingReason::All) => Some(SamplingReason::All),
            _ if self.by_application && fragment.sampled_by_application => {
                Some(SamplingReason::ByApplication)
            }
            by_ratio => by_ratio,
        }
    }

    /// Returns the annotation of the sampled trace.
    pub fn annotation(&self, reason: SamplingReason) -> Option<Sampled> {
        let (rule, one_in) = match (reason, self.slower_than) {
            (SamplingReason::All, _) => return None,
            (SamplingReason::ByRatio, _) => (Cow::Borrowed("sampled by its id"), self.one_in),
            (SamplingReason::Failed, _) => (Cow::Borrowed("failed"), 1),
            (SamplingReason::Slow, Some(DurationNs(ns))) => {
                (Cow::Owned(format!("slower than {} µs", ns / 1_000)), 1)
            }
            (SamplingReason::Slow, None) => (Cow::Borrowed("slow"), 1),
            (SamplingReason::ByApplication, _) => (Cow::Borrowed("sampled by the program"), 1),
        };
        Some(Sampled { rule, one_in })
    }
}
