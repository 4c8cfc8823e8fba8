//! Bounds of the difference between the clocks of two nodes, from the requests between them.
//!
//! *In*: pairs of endpoints that certainly belong to one request. *Out*: an interval for the
//! difference of the two monotonic clocks; and, for another pair, whether the server's endpoint is
//! within the client's.
//!
//! *Invariant*: the true difference is in the interval, as long as no two clocks drift apart by
//! more than 1,000 ppm and the pairs were true.
//!
//! A server starts a request after the client sent it, and sends its reply before the client
//! receives it. Let c be times of the client's clock, s times of the server's clock, and d = s − c
//! at one moment:
//!
//! ```text
//! s_begin − d ≥ c_begin   and   s_end − d ≤ c_end    so    s_end − c_end ≤ d ≤ s_begin − c_begin
//! ```
//!
//! Each request gives such an interval, as long as its network delay. The true difference is in the
//! intersection of all of them. An older interval is widened by the drift since then. Its lower
//! end, which is of the request's end, is also widened by the drift during the request, so that
//! both ends are of one moment: the request's begin.
//!
//! *One clock*: if both endpoints are on one machine there is nothing to learn. There only the
//! *start* at the server must be within the client's endpoint. A server reports completion after it
//! sent the reply, and the client may have the reply before that (by some µs on one machine). Of
//! two requests with one cookie, the second is sent after the first was answered, so neither starts
//! within the other.
//!
//! Pairs that contradict the known interval are refused. If eight of them in a row agree with each
//! other, the known interval is wrong: a machine was suspended, and its monotonic clock stood
//! still. Then their interval replaces it.
//!
//! *Pairs that were linked by their times* (virtual machines' disks) are no certain ones: eight have to agree before
//! they are known, and then they narrow the interval like the others. Without a certain pair, a wrong interval gets no
//! further pairs and widens by the drift, until true pairs are within it again.
//!
//! *Rejected*: the wall clocks. NTP may step them, and their error is unknown.

use std::collections::BTreeMap;

use blkkin_wire::clock::{self, DurationNs, MonotonicNs, clamp};
use blkkin_wire::ids::{BootId, NodeId};
use blkkin_wire::remote_link::{LinkEndpoint, PeerClock};
use serde::{Deserialize, Serialize};

/// Number of successive pairs that contradict the known interval and agree with each other until
/// they replace it.
const RELEARN_AFTER: u32 = 8;
/// Maximum number of remembered node pairs. Beyond it the least recently used one is forgotten, and
/// learned again.
const PAIRS_MAX: usize = 4_096;

/// A monotonic clock: one boot of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Clock {
    /// Machine.
    pub node: NodeId,
    /// Boot.
    pub boot: BootId,
}

/// Lower bound of a request without a reply. No two clock readings differ by that much.
const NO_BOUND: i128 = i128::MIN / 4;

/// Interval of a difference, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower bound.
    pub low: i128,
    /// Upper bound.
    pub high: i128,
}

/// Position of the server's endpoint relative to the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Containment {
    Inside,
    /// Possible: the clocks are unknown.
    Unknown,
    Outside,
}

/// Known interval of one pair of clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairBound {
    /// Server's clock minus the client's, at `at`.
    pub offset: Interval,
    /// Time on the client's clock.
    pub at: u64,
    /// Number of requests that contributed.
    pub requests: u64,
    contradiction: Option<(Interval, u32)>,
    used: u64,
}

/// Difference between the wall clocks of two nodes, from all requests between them. It is published
/// as a metric. Spans are not shifted by it (see [`super`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockBound {
    /// Node of the client.
    pub client: NodeId,
    /// Node of the server.
    pub server: NodeId,
    /// Time on the client's clock.
    pub at: MonotonicNs,
    /// Server's wall clock minus the client's, by their anchors, ns.
    pub offset: i64,
    /// Error bound of the offset, independent of the uncertainty that either clock reports.
    pub error: DurationNs,
}

/// Known intervals, by client and server clock.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ClockBounds {
    bounds: BTreeMap<(Clock, Clock), PairBound>,
    /// Intervals of pairs that were linked by their times, until enough agree.
    tentative: BTreeMap<(Clock, Clock), PairBound>,
    count: u64,
}

impl Interval {
    /// Returns the interval of one request.
    pub(super) fn of(client: &LinkEndpoint, server: &LinkEndpoint) -> Interval {
        let difference = |s: u64, c: u64| i128::from(s) - i128::from(c);
        let low = difference(server.event.end.0, client.event.end.0);
        Interval {
            low: if client.event.no_reply { NO_BOUND } else { low },
            high: difference(server.event.begin.0, client.event.begin.0),
        }
    }

    /// Returns the interval at the moment of the request's begin.
    fn at_begin(self, client: &LinkEndpoint) -> Interval {
        Interval { low: self.low - drift(client.event.duration().0), ..self }
    }

    pub(super) fn middle(&self) -> i128 {
        self.low + (self.high - self.low) / 2
    }

    /// Returns half of the length, rounded up.
    pub(super) fn half_width(&self) -> u64 {
        u64::try_from((self.high - self.low + 1) / 2).unwrap_or(0)
    }

    /// Returns the interval `ns` later or earlier.
    fn after(self, ns: u64) -> Interval {
        Interval { low: self.low - drift(ns), high: self.high + drift(ns) }
    }

    fn is_empty(&self) -> bool {
        self.low > self.high
    }

    fn and(self, other: Interval) -> Interval {
        Interval { low: self.low.max(other.low), high: self.high.min(other.high) }
    }
}

impl PairBound {
    /// Returns the interval at another time, earlier or later.
    fn at(&self, at: u64) -> Interval {
        self.offset.after(at.abs_diff(self.at))
    }
}

/// Returns the maximum drift of two clocks in `ns`.
fn drift(ns: u64) -> i128 {
    i128::from(clock::drift(ns))
}

/// Returns the clock of an endpoint's times.
pub(super) fn clock_of(endpoint: &LinkEndpoint) -> Clock {
    Clock { node: endpoint.clock.source.node, boot: endpoint.clock.source.boot }
}

/// Returns the offset from monotonic time to wall clock.
pub(super) fn wall_less_monotonic(endpoint: &LinkEndpoint) -> i128 {
    let anchor = endpoint.clock.anchor;
    i128::from(anchor.wallclock.0) - i128::from(anchor.monotonic.0)
}

/// Returns whether both endpoints are on one machine.
pub(super) fn one_clock(client: &LinkEndpoint, server: &LinkEndpoint) -> bool {
    clock_of(client) == clock_of(server)
}

/// Returns what the client's node has measured of the server's clock, at the client's time.
fn measured(client: &LinkEndpoint, server: &LinkEndpoint) -> Option<Interval> {
    let peer = client.peer.filter(|peer| Clock { node: peer.node, boot: peer.boot } == clock_of(server));
    peer.map(|peer| offset_at_begin(client, &peer))
}

fn offset_at_begin(client: &LinkEndpoint, PeerClock { offset, .. }: &PeerClock) -> Interval {
    let interval = Interval { low: offset.low.into(), high: offset.high.into() };
    interval.after(client.event.begin.0.abs_diff(offset.at.0))
}

/// Returns the clock that a client's node has measured, and begin and end by it of all that can be inside the client; none
/// if it has measured none.
pub(super) fn window(client: &LinkEndpoint) -> Option<(Clock, u64, u64)> {
    let peer = client.peer?;
    let measured = offset_at_begin(client, &peer);
    let event = &client.event;
    let last = i128::from(event.end.0) + measured.high + drift(event.duration().0);
    let clamped = |time: i128| u64::try_from(time.max(0)).unwrap_or(u64::MAX);
    let clock = Clock { node: peer.node, boot: peer.boot };
    Some((clock, clamped(i128::from(event.begin.0) + measured.low), clamped(last)))
}

/// Returns the interval of one request, narrowed by what the client's node has measured if both agree.
pub(super) fn interval(client: &LinkEndpoint, server: &LinkEndpoint) -> Interval {
    let of = Interval::of(client, server);
    let narrowed = measured(client, server).map(|measured| of.and(measured));
    narrowed.filter(|both| !both.is_empty()).unwrap_or(of)
}

impl ClockBounds {
    /// Checks whether two endpoints can be one request. A contradiction counts against the known
    /// interval.
    pub(super) fn check(&mut self, client: &LinkEndpoint, server: &LinkEndpoint) -> Containment {
        if one_clock(client, server) {
            let started = server.event.begin;
            let left = client.event.no_reply && client.event.unique && server.event.unique;
            let inside = client.event.begin <= started && (started <= client.event.end || left);
            return if inside { Containment::Inside } else { Containment::Outside };
        }
        let of = Interval::of(client, server);
        if of.is_empty() {
            return Containment::Outside;
        }
        let of = of.at_begin(client);
        let Some(bound) = self.bounds.get_mut(&(clock_of(client), clock_of(server))) else {
            return Containment::Unknown;
        };
        let at = client.event.begin.0;
        let exact = client.event.unique && server.event.unique;
        let known = bound.at(at);
        // The cookie repeats, and the client left early: the server's endpoint may be that of the
        // next request.
        if !exact && client.event.no_reply {
            return Containment::Unknown;
        }
        // The cookie repeats: within the uncertainty of the clocks, the endpoint of the previous or
        // next request could fit.
        if !exact && known.high - known.low >= i128::from(server.event.duration().0) {
            return Containment::Unknown;
        }
        if !known.and(of).is_empty() {
            return Containment::Inside;
        }
        if !exact {
            return Containment::Outside;
        }
        // A request without a reply is too weak to contradict the known interval.
        if client.event.no_reply {
            return Containment::Outside;
        }
        let (agreed, times) = match bound.contradiction {
            Some((contradiction, times)) if !contradiction.and(of).is_empty() => {
                (contradiction.and(of), times + 1)
            }
            _ => (of, 1),
        };
        bound.contradiction = Some((agreed, times));
        if times < RELEARN_AFTER {
            return Containment::Outside;
        }
        *bound =
            PairBound { offset: agreed, at, requests: times.into(), contradiction: None, used: bound.used };
        Containment::Inside
    }

    /// Returns whether the server's endpoint can be within the client's, by what is known of both clocks. False if
    /// nothing is known.
    pub(super) fn contains(&self, client: &LinkEndpoint, server: &LinkEndpoint) -> bool {
        if one_clock(client, server) {
            return client.event.begin <= server.event.begin && server.event.end <= client.event.end;
        }
        let of = Interval::of(client, server);
        if of.is_empty() {
            return false;
        }
        let of = of.at_begin(client);
        // What is known is within what was measured, which needs no lookup.
        let measured = measured(client, server);
        if measured.is_some_and(|measured| measured.and(of).is_empty()) {
            return false;
        }
        self.known(client, server, measured).is_some_and(|known| !known.and(of).is_empty())
    }

    /// Returns the known interval at the client's time: that of the requests and, if the client's node knows the
    /// server's clock, that too. If the two contradict, a clock has stood still, and the latter is the newer.
    fn known(
        &self,
        client: &LinkEndpoint,
        server: &LinkEndpoint,
        measured: Option<Interval>,
    ) -> Option<Interval> {
        let at = client.event.begin.0;
        let learned = self.bounds.get(&(clock_of(client), clock_of(server))).map(|bound| bound.at(at));
        match (learned, measured) {
            (Some(learned), Some(measured)) => {
                Some(learned.and(measured)).filter(|both| !both.is_empty()).or(Some(measured))
            }
            (one, other) => one.or(other),
        }
    }

    /// Learns from two endpoints that were linked by their times. One such pair may be wrong, so the first
    /// [`RELEARN_AFTER`] are kept apart until they agree with each other.
    pub(super) fn learn_by_agreement(&mut self, client: &LinkEndpoint, server: &LinkEndpoint) {
        let (key, at) = ((clock_of(client), clock_of(server)), client.event.begin.0);
        let known = self.known(client, server, measured(client, server));
        if let Some(bound) = self.bounds.get(&key) {
            if known.is_some_and(|known| !bound.at(at).and(known).is_empty()) {
                return self.learn(client, server);
            }
            self.bounds.remove(&key);
        }
        let of = Interval::of(client, server).at_begin(client);
        let agreed = self.tentative.get(&key).map(|bound| (bound.at(at).and(of), bound.requests + 1));
        let (offset, requests) = agreed.filter(|(both, _)| !both.is_empty()).unwrap_or((of, 1));
        let bound = PairBound { offset, at, requests, contradiction: None, used: self.count };
        if requests < RELEARN_AFTER.into() {
            if self.tentative.len() >= PAIRS_MAX {
                self.tentative.clear();
            }
            self.tentative.insert(key, bound);
        } else {
            self.tentative.remove(&key);
            self.learn(client, server);
            self.bounds.insert(key, bound);
        }
    }

    /// Returns the known bound of both clocks at the client's time.
    pub(super) fn bound(&self, client: &LinkEndpoint, server: &LinkEndpoint) -> Option<ClockBound> {
        let known = self.bounds.get(&(clock_of(client), clock_of(server)))?.at(client.event.begin.0);
        let wall = wall_less_monotonic(server) - wall_less_monotonic(client);
        Some(ClockBound {
            client: client.clock.source.node,
            server: server.clock.source.node,
            at: client.event.begin,
            offset: clamp(known.middle() + wall),
            error: DurationNs(known.half_width()),
        })
    }

    /// Learns from two endpoints that are one request.
    pub(super) fn learn(&mut self, client: &LinkEndpoint, server: &LinkEndpoint) {
        if one_clock(client, server) || client.event.no_reply {
            return;
        }
        let key = (clock_of(client), clock_of(server));
        let (of, at) = (Interval::of(client, server).at_begin(client), client.event.begin.0);
        self.count += 1;
        let used = self.count;
        if let Some(bound) = self.bounds.get_mut(&key) {
            let offset = bound.at(at).and(of);
            if !offset.is_empty() {
                *bound = PairBound { offset, at, requests: bound.requests + 1, contradiction: None, used };
            }
            return;
        }
        if self.bounds.len() >= PAIRS_MAX
            && let Some(oldest) = self.bounds.iter().min_by_key(|(_, bound)| bound.used).map(|(key, _)| *key)
        {
            self.bounds.remove(&oldest);
        }
        self.bounds.insert(key, PairBound { offset: of, at, requests: 1, contradiction: None, used });
    }

    /// Iterates over all known intervals.
    pub fn iter(&self) -> impl Iterator<Item = (&(Clock, Clock), &PairBound)> {
        self.bounds.iter()
    }
}
