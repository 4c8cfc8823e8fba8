//! How far the clocks of two nodes can be apart, by the requests that went between them.
//!
//! *In*: pairs of halves that are one request beyond doubt. *Out*: an interval for the difference of the two monotonic clocks,
//! and, for another pair, whether it lies inside.
//! *Invariant*: the true difference lies in the interval, as long as no two clocks drift apart by more than 1,000 ppm and the pairs
//! were true.
//!
//! Who answers takes the request after it was sent, and sends the answer before it comes: with times c of the asker's clock,
//! s of the other's, and d = s − c for one moment,
//!
//! ```text
//! s_begin − d ≥ c_begin   and   s_end − d ≤ c_end    so    s_end − c_end ≤ d ≤ s_begin − c_begin
//! ```
//!
//! Each request gives such an interval, as long as what the network took; the true difference lies in all of them. What was
//! known some time ago is widened by what the clocks may have drifted since; and its lower end, which is of the request's end, by what
//! they may have drifted while it took, so that both ends are of one moment: its begin.
//!
//! *One clock*: where both ends are on one machine nothing has to be learned. There the request lies inside by when it was *taken* alone:
//! who answers says that it is done after the answer was sent, and whoever asked may have it before that (on one machine in
//! some µs). Of two requests with one cookie the second is sent after the first was answered, so neither is taken inside the other.
//!
//! Pairs that contradict what is known are refused. If eight of them in a row agree with each other, it is the
//! knowledge that is wrong: a machine was suspended, and its monotonic clock stood still. Then it begins anew with theirs.

use std::collections::BTreeMap;

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::ids::{BootId, NodeId};
use blkkin_wire::remote_link::LinkEndpoint;
use serde::{Deserialize, Serialize};

/// Most that two clocks drift apart: adjtimex(2) corrects a clock's frequency by 500 ppm at the most, and there are two.
const DRIFT_PPM: u64 = 1_000;
/// Pairs that contradict what is known, and agree, until they are believed.
const ANEW_AFTER: u32 = 8;
/// Pairs of nodes remembered. Beyond it the one that met longest ago is forgotten, and learned again.
const PAIRS_MAX: usize = 4_096;

/// A monotonic clock: of one boot of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Clock {
    /// The machine.
    pub node: NodeId,
    /// Its boot.
    pub boot: BootId,
}

/// Of a request without an answer a difference has no lower bound: no clock's reading is that far from another's.
const NO_BOUND: i128 = i128::MIN / 4;

/// From where to where a difference may lie, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// At least.
    pub low: i128,
    /// At the most.
    pub high: i128,
}

/// Whether the answering end lies inside the asking one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Inside,
    /// It may: nothing is known of the clocks.
    Unknown,
    Outside,
}

/// What is known of one pair of clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The answerer's clock less the asker's, at `at`.
    pub offset: Interval,
    /// On the asker's clock.
    pub at: u64,
    /// By so many requests.
    pub requests: u64,
    strangers: Option<(Interval, u32)>,
    used: u64,
}

/// How far the wall clocks of two nodes are apart, as all requests between them show: to be published beside what is shown of
/// requests. Spans are not moved by it (see [`super`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// Who asked.
    pub asker: NodeId,
    /// Who answered.
    pub answerer: NodeId,
    /// When, on the asker's clock.
    pub at: MonotonicNs,
    /// The answerer's wall clock less the asker's, as the anchors have both. ns.
    pub offset: i64,
    /// It is off by no more, whatever either clock claims of itself.
    pub error: DurationNs,
}

/// What is known, by who asked and who answered.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Clocks {
    bounds: BTreeMap<(Clock, Clock), Bound>,
    count: u64,
}

impl Interval {
    /// What this request says of the difference.
    pub(super) fn of(asked: &LinkEndpoint, answered: &LinkEndpoint) -> Interval {
        let difference = |s: u64, c: u64| i128::from(s) - i128::from(c);
        let low = difference(answered.event.end.0, asked.event.end.0);
        Interval {
            low: if asked.event.no_reply { NO_BOUND } else { low },
            high: difference(answered.event.begin.0, asked.event.begin.0),
        }
    }

    /// The same of one moment: when it was asked.
    fn at_begin(self, asked: &LinkEndpoint) -> Interval {
        Interval { low: self.low - drift(asked.event.duration().0), ..self }
    }

    pub(super) fn middle(&self) -> i128 {
        self.low + (self.high - self.low) / 2
    }

    /// Half of its length, rounded up.
    pub(super) fn half(&self) -> u64 {
        u64::try_from((self.high - self.low + 1) / 2).unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        self.low > self.high
    }

    fn and(self, other: Interval) -> Interval {
        Interval { low: self.low.max(other.low), high: self.high.min(other.high) }
    }
}

impl Bound {
    /// As it is at another time, which may be earlier too.
    fn at(&self, at: u64) -> Interval {
        let drift = drift(at.abs_diff(self.at));
        Interval { low: self.offset.low - drift, high: self.offset.high + drift }
    }
}

/// What two clocks may drift apart in so many ns, rounded up.
fn drift(ns: u64) -> i128 {
    (i128::from(ns) * i128::from(DRIFT_PPM)).div_euclid(1_000_000) + 1
}

fn clock(half: &LinkEndpoint) -> Clock {
    Clock { node: half.clock.source.node, boot: half.clock.source.boot }
}

/// What has to be added to a time of its monotonic clock.
pub(super) fn wall_less_monotonic(half: &LinkEndpoint) -> i128 {
    let anchor = half.clock.anchor;
    i128::from(anchor.wallclock.0) - i128::from(anchor.monotonic.0)
}

pub(super) fn clamp(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

/// Both ends were on one machine.
pub(super) fn one_clock(asked: &LinkEndpoint, answered: &LinkEndpoint) -> bool {
    clock(asked) == clock(answered)
}

impl Clocks {
    /// Whether these two can be one request. What was outside counts against what is known.
    pub(super) fn judge(&mut self, asked: &LinkEndpoint, answered: &LinkEndpoint) -> Verdict {
        if one_clock(asked, answered) {
            let taken = answered.event.begin;
            let left = asked.event.no_reply && asked.event.unique && answered.event.unique;
            let inside = asked.event.begin <= taken && (taken <= asked.event.end || left);
            return if inside { Verdict::Inside } else { Verdict::Outside };
        }
        let of = Interval::of(asked, answered);
        if of.is_empty() {
            return Verdict::Outside;
        }
        let of = of.at_begin(asked);
        let Some(bound) = self.bounds.get_mut(&(clock(asked), clock(answered))) else {
            return Verdict::Unknown;
        };
        let at = asked.event.begin.0;
        let exact = asked.event.unique && answered.event.unique;
        let known = bound.at(at);
        // Of a name that comes again the next may be meant, once who asked had left.
        if !exact && asked.event.no_reply {
            return Verdict::Unknown;
        }
        // Of a name that comes again: the end before or after could be taken for it by what is not known of the clocks.
        if !exact && known.high - known.low >= i128::from(answered.event.duration().0) {
            return Verdict::Unknown;
        }
        if !known.and(of).is_empty() {
            return Verdict::Inside;
        }
        if !exact {
            return Verdict::Outside;
        }
        // It says too little to speak against what is known.
        if asked.event.no_reply {
            return Verdict::Outside;
        }
        let (agreed, times) = match bound.strangers {
            Some((strangers, times)) if !strangers.and(of).is_empty() => (strangers.and(of), times + 1),
            _ => (of, 1),
        };
        bound.strangers = Some((agreed, times));
        if times < ANEW_AFTER {
            return Verdict::Outside;
        }
        *bound = Bound { offset: agreed, at, requests: times.into(), strangers: None, used: bound.used };
        Verdict::Inside
    }

    /// What is known of their clocks by now, at the time of the one that asked.
    pub(super) fn apart(&self, asked: &LinkEndpoint, answered: &LinkEndpoint) -> Option<Apart> {
        let known = self.bounds.get(&(clock(asked), clock(answered)))?.at(asked.event.begin.0);
        let wall = wall_less_monotonic(answered) - wall_less_monotonic(asked);
        Some(Apart {
            asker: asked.clock.source.node,
            answerer: answered.clock.source.node,
            at: asked.event.begin,
            offset: clamp(known.middle() + wall),
            error: DurationNs(known.half()),
        })
    }

    /// These two are one request.
    pub(super) fn learn(&mut self, asked: &LinkEndpoint, answered: &LinkEndpoint) {
        if one_clock(asked, answered) || asked.event.no_reply {
            return;
        }
        let key = (clock(asked), clock(answered));
        let (of, at) = (Interval::of(asked, answered).at_begin(asked), asked.event.begin.0);
        self.count += 1;
        let used = self.count;
        if let Some(bound) = self.bounds.get_mut(&key) {
            let offset = bound.at(at).and(of);
            if !offset.is_empty() {
                *bound = Bound { offset, at, requests: bound.requests + 1, strangers: None, used };
            }
            return;
        }
        if self.bounds.len() >= PAIRS_MAX
            && let Some(oldest) = self.bounds.iter().min_by_key(|(_, bound)| bound.used).map(|(key, _)| *key)
        {
            self.bounds.remove(&oldest);
        }
        self.bounds.insert(key, Bound { offset: of, at, requests: 1, strangers: None, used });
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&(Clock, Clock), &Bound)> {
        self.bounds.iter()
    }
}
