//! Operations of QEMU on images with clusters of which the place in the guest's disk is not known yet.
//!
//! *In*: such operations, and the guest's requests. *Out*: pairs of both for the [`ClusterMap`], and the operations of
//! which it knows the place now.
//!
//! QEMU splits a request at clusters that do not follow each other in the image. So an operation may also be a part of any
//! longer request: such a one at that time leaves a doubt.
//!
//! *Invariant*: a pair has equal operations and equal ranges within a cluster, or QEMU's is the guest's range rounded to
//! whole clusters; the request's time contains the operation's; and neither has another candidate, or the map prefers
//! only this one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use blkkin_wire::clock::ClockOffset;
use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::ids::BootId;
use blkkin_wire::remote_link::LinkEndpoint;
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

use super::clusters::{ClusterMap, Pair, clusters, is_too_long, rounded, within_cluster};
use super::waiting::{EndpointKey, Waiting};

/// Longest request of the guest from which places are learned: a longer one contains many operations.
const LONGEST_NS: u64 = 100_000_000;
/// Maximum error of the guest's clock for that.
const CLOCK_ERROR_NS: u64 = 10_000_000;
/// Time in ms of the log after a discard in which its clusters get no place: pairs of before may still wait.
const DISCARD_MS: u64 = 15_000;
/// Time in ms of the log for which a discard is kept: longer than any endpoint waits.
const DISCARDS_KEPT_MS: u64 = 300_000;
/// Maximum number of such discards. With more, no cluster gets a place for that time.
const DISCARDS: usize = 256;
/// Maximum number of endpoints near in time that are looked at for a pair. With more the pair is in doubt.
const LOOKED_AT: usize = 64;

/// Maximum number of waiting requests that are too long or of which the time is not well known. With more all is in doubt.
const SLOW_MAX: usize = 256;

/// Operations and requests of a disk in an image with clusters.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Unplaced {
    pub(super) map: ClusterMap,
    /// Time of the last use of the map.
    pub(super) used: LogTime,
    /// Boot of the host: another virtual machine may have the same name after the next one.
    boot: Option<BootId>,
    /// Image of each layer, which a snapshot changes.
    images: BTreeMap<u32, CurrentImage>,
    /// Clusters of the guest that it has discarded not long ago.
    discards: VecDeque<(LogTime, u64, u64)>,
    /// Time until which nothing is learned, because there were too many discards.
    paused_until: LogTime,
    /// Operations without a place, by their range in the image.
    operations: BTreeMap<EndpointKey, Waiting>,
    /// Operations without a place by their range within a cluster and their begin, and by each cluster of the image.
    by_offset: BTreeSet<(u64, u64, EndpointKey)>,
    by_cluster: BTreeSet<(u64, EndpointKey)>,
    /// Waiting requests of the guest by their ranges within a cluster, and their begin by the host's clock.
    requests: BTreeSet<(u64, u64, EndpointKey)>,
    /// Of those, the ones on several clusters, by begin.
    split: BTreeSet<(u64, EndpointKey)>,
    /// Requests of which the time is too long or not well known.
    slow: BTreeSet<EndpointKey>,
    /// Cookies in the guest's disk of waiting operations that have a place, by number.
    placed: BTreeMap<u64, u64>,
}

/// Image of a layer.
#[derive(Debug, Serialize, Deserialize)]
struct CurrentImage {
    image: u64,
    /// The one before, of which operations can still arrive, and when it was replaced.
    before: Option<u64>,
    replaced: LogTime,
}

/// Returns the cookies under which QEMU's operation for a request may be found: its range and, for a write, whole clusters.
fn offsets(request: DiskRequest) -> impl Iterator<Item = u64> {
    let exact = within_cluster(request);
    let whole = rounded(request).filter(|_| request.operation == DiskOperation::Write).map(within_cluster);
    let whole = whole.filter(|whole| *whole != exact);
    std::iter::once(exact).chain(whole).map(DiskRequest::cookie)
}

/// Returns whether places are learned from a range. A discarded cluster has no place any more.
fn is_learned_from(range: DiskRequest) -> bool {
    matches!(range.operation, DiskOperation::Read | DiskOperation::Write) && !is_too_long(range)
}

/// Returns begin and length of a guest's request by the host's clock, in ns; none if places are not learned from it.
fn on_hosts_clock(request: &LinkEndpoint) -> Option<(u64, u64)> {
    let ClockOffset { low, high, .. } = request.peer?.offset;
    let (length, error) = (request.event.duration().0, high.abs_diff(low) / 2);
    let begin = request.event.begin.0.wrapping_add_signed(low).wrapping_add(error);
    (length <= LONGEST_NS && error <= CLOCK_ERROR_NS).then_some((begin, length))
}

impl Unplaced {
    /// Notes the boot of the host and the image of an operation, and forgets what was learned in another one. Returns false
    /// for an operation of an image that was replaced.
    pub(super) fn set_image(&mut self, place: EndpointKey, operation: &LinkEndpoint, now: LogTime) -> bool {
        let (boot, layer) = (operation.clock.source.boot, DiskRequest::from_cookie(place.0).layer());
        if self.boot != Some(boot) {
            (self.boot, self.map) = (Some(boot), ClusterMap::default());
            self.images.clear();
        }
        let Some(image) = operation.image else { return true };
        let first = CurrentImage { image, before: None, replaced: now };
        let current = self.images.entry(layer).or_insert(first);
        if current.image == image {
            return true;
        }
        let is_recent = now.0.saturating_sub(current.replaced.0) <= DISCARD_MS;
        if is_recent && current.before == Some(image) {
            return false;
        }
        *current = CurrentImage { image, before: Some(current.image), replaced: now };
        self.map.forget_layer(layer);
        let is_of_layer = |place: &EndpointKey| DiskRequest::from_cookie(place.0).layer() == layer;
        self.by_offset.retain(|(_, _, place)| !is_of_layer(place));
        self.by_cluster.retain(|(_, place)| !is_of_layer(place));
        true
    }

    /// Adds an operation that gets no place.
    pub(super) fn add_without_place(&mut self, place: EndpointKey, operation: Waiting) {
        self.operations.insert(place, operation);
    }

    /// Forgets the places of clusters that the guest discards.
    pub(super) fn on_discard(&mut self, range: DiskRequest, now: LogTime) {
        self.map.forget_guest(range);
        let clusters = clusters(range);
        let is_old = |discard: &mut (LogTime, u64, u64)| now.0.saturating_sub(discard.0.0) > DISCARDS_KEPT_MS;
        while self.discards.pop_front_if(is_old).is_some() {}
        self.discards.push_back((now, *clusters.start(), *clusters.end()));
        if self.discards.len() > DISCARDS {
            self.discards.clear();
            self.map = ClusterMap::default();
            self.paused_until = LogTime(now.0 + DISCARD_MS);
        }
    }

    /// Learns from a pair. Returns the clusters of the image that have a certain place now and had none.
    pub(super) fn learn(&mut self, pair: &Pair) -> Vec<u64> {
        let guest = clusters(pair.guest);
        let is_discarded = |(at, first, last): &(LogTime, u64, u64)| {
            pair.at.0 <= at.0 + DISCARD_MS && *first <= *guest.end() && *guest.start() <= *last
        };
        if pair.at < self.paused_until || self.discards.iter().any(is_discarded) {
            return Vec::new();
        }
        self.map.learn(pair)
    }

    /// Returns whether no operation waits for its place.
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Adds a request of the guest.
    pub(super) fn add_request(&mut self, place: EndpointKey, request: &Waiting) {
        let range = DiskRequest::from_cookie(place.0);
        if !is_learned_from(range) {
            return;
        }
        let Some((begin, _)) = on_hosts_clock(&request.endpoint) else {
            self.slow.insert(place);
            return;
        };
        self.requests.extend(requests_of(place, request));
        if clusters(range).count() > 1 {
            self.split.insert((begin, place));
        }
    }

    /// Removes a request that does not wait any more.
    pub(super) fn remove_request(&mut self, place: EndpointKey, request: &Waiting) {
        requests_of(place, request).for_each(|one| {
            self.requests.remove(&one);
        });
        match on_hosts_clock(&request.endpoint) {
            Some((begin, _)) => self.split.remove(&(begin, place)),
            None => self.slow.remove(&place),
        };
    }

    /// Returns the cookie of an operation in the guest's disk, if it has a place, and notes it for
    /// [`Self::placed`].
    pub(super) fn guest_cookie(&mut self, place: EndpointKey, now: LogTime) -> Option<u64> {
        let cookie = self.map.guest_range(DiskRequest::from_cookie(place.0))?.cookie();
        self.placed.insert(place.1, cookie);
        self.used = now;
        Some(cookie)
    }

    /// Adds an operation without a place.
    pub(super) fn add(&mut self, place: EndpointKey, operation: Waiting) {
        let range = DiskRequest::from_cookie(place.0);
        if is_learned_from(range) {
            let begin = operation.endpoint.event.begin.0;
            self.by_offset.insert((within_cluster(range).cookie(), begin, place));
            self.by_cluster.extend(clusters(range).map(|cluster| (cluster, place)));
        }
        self.operations.insert(place, operation);
    }

    /// Takes an operation without a place.
    pub(super) fn take(&mut self, place: EndpointKey) -> Option<Waiting> {
        let operation = self.operations.remove(&place)?;
        let range = DiskRequest::from_cookie(place.0);
        if is_learned_from(range) {
            let begin = operation.endpoint.event.begin.0;
            self.by_offset.remove(&(within_cluster(range).cookie(), begin, place));
            clusters(range).for_each(|cluster| {
                self.by_cluster.remove(&(cluster, place));
            });
        }
        Some(operation)
    }

    /// Returns an operation without a place.
    pub(super) fn get_mut(&mut self, place: EndpointKey) -> Option<&mut Waiting> {
        self.operations.get_mut(&place)
    }

    /// Returns where an operation waits that has a place.
    pub(super) fn placed(&self, place: EndpointKey) -> Option<EndpointKey> {
        self.placed.get(&place.1).map(|cookie| (*cookie, place.1))
    }

    /// Forgets an operation with a place that does not wait any more.
    pub(super) fn forget_placed(&mut self, number: u64) {
        self.placed.remove(&number);
    }

    /// Returns the operations without a place that may serve a request, by their ranges and the times of both.
    pub(super) fn operations_for(&self, place: EndpointKey, request: &Waiting) -> Vec<EndpointKey> {
        let operations = requests_of(place, request).flat_map(|(offset, begin, _)| {
            let end = begin.saturating_add(request.endpoint.event.duration().0 + CLOCK_ERROR_NS);
            near(&self.by_offset, offset, begin.saturating_sub(CLOCK_ERROR_NS), end)
        });
        operations.take(LOOKED_AT + 1).collect()
    }

    /// Returns the operations without a place on these clusters of the image.
    pub(super) fn operations_on(&self, clusters: &[u64]) -> BTreeSet<EndpointKey> {
        let on = |cluster: &u64| {
            let range = (*cluster, (0, 0))..=(*cluster, (u64::MAX, u64::MAX));
            self.by_cluster.range(range).map(|(_, place)| *place)
        };
        clusters.iter().flat_map(on).collect()
    }

    /// Returns an operation without a place and the request that it serves, if there is no doubt. `waiting`: a request.
    /// `fits`: whether a request contains an operation in time and has no other one; none if that is not certain yet.
    pub(super) fn pair_of<'a>(
        &self,
        place: EndpointKey,
        waiting: impl Fn(EndpointKey) -> Option<&'a Waiting>,
        fits: impl Fn(EndpointKey, &Waiting, &Waiting) -> Option<bool>,
    ) -> Option<Pair> {
        let (operation, range) = (self.operations.get(&place)?, DiskRequest::from_cookie(place.0));
        if !is_learned_from(range) || self.slow.len() > SLOW_MAX {
            return None;
        }
        let begin = operation.endpoint.event.begin.0;
        let (first, last) =
            (begin.saturating_sub(LONGEST_NS + CLOCK_ERROR_NS), begin.saturating_add(CLOCK_ERROR_NS));
        let offset = within_cluster(range).cookie();
        let requests = near(&self.requests, offset, first, last);
        let fits_operation = |request| fits(request, waiting(request)?, operation);
        let candidates = fitting(requests, fits_operation)?;
        // Of these it may be a part, or they may be as long.
        let split = self.split.range((first, (0, 0))..=(last.max(first), (u64::MAX, u64::MAX)));
        let longer = split.map(|(_, request)| *request).filter(|request| {
            let request = DiskRequest::from_cookie(request.0);
            request.operation == range.operation && request.length > range.length
        });
        let slow = self.slow.iter().copied().filter(|request| {
            let request = DiskRequest::from_cookie(request.0);
            request.operation == range.operation
                && rounded(request).is_some_and(|whole| whole.length >= range.length)
        });
        let is_alone = fitting(longer.chain(slow), fits_operation)?.is_empty();
        let request = self.only(&candidates, is_alone, |request| {
            Some(pair((place, operation), (*request, waiting(*request)?)))
        })?;
        let of_request = waiting(request)?;
        let operations = self.operations_for(request, of_request).into_iter();
        let others = fitting(operations, |other| fits(request, of_request, self.operations.get(&other)?))?;
        let of =
            |other: &EndpointKey| Some(pair((*other, self.operations.get(other)?), (request, of_request)));
        let only = self.only(&others, true, of);
        if only == Some(place) { of(&place) } else { None }
    }

    /// Returns the only one of these, if nothing else is possible (`is_alone`), or the only one of which the map prefers
    /// the pair.
    fn only(
        &self,
        of: &[EndpointKey],
        is_alone: bool,
        pair: impl Fn(&EndpointKey) -> Option<Pair>,
    ) -> Option<EndpointKey> {
        if let ([one], true) = (of, is_alone) {
            return Some(*one);
        }
        let mut preferred = of.iter().filter(|place| pair(place).is_some_and(|pair| self.map.prefers(&pair)));
        preferred.next().filter(|_| preferred.next().is_none()).copied()
    }
}

/// Returns the pair of an operation and a request, at the time when the later one arrived.
fn pair(operation: (EndpointKey, &Waiting), request: (EndpointKey, &Waiting)) -> Pair {
    let [host, guest] = [operation, request].map(|(place, _)| DiskRequest::from_cookie(place.0));
    Pair { host, guest, request: request.0.1, at: operation.1.at.max(request.1.at) }
}

/// Returns the ranges within a cluster under which a request is found, with its begin by the host's clock.
fn requests_of(place: EndpointKey, request: &Waiting) -> impl Iterator<Item = (u64, u64, EndpointKey)> {
    let range = DiskRequest::from_cookie(place.0);
    let begin = on_hosts_clock(&request.endpoint).filter(|_| is_learned_from(range));
    begin.into_iter().flat_map(move |(begin, _)| offsets(range).map(move |offset| (offset, begin, place)))
}

/// Iterates over endpoints of this range within a cluster that begin between these times.
fn near(
    of: &BTreeSet<(u64, u64, EndpointKey)>,
    offset: u64,
    first: u64,
    last: u64,
) -> impl Iterator<Item = EndpointKey> {
    let range = (offset, first, (0, 0))..=(offset, last.max(first), (u64::MAX, u64::MAX));
    of.range(range).map(|(_, _, place)| *place)
}

/// Returns those that fit; none if that is not certain of one of them, or if there are too many.
fn fitting(
    all: impl Iterator<Item = EndpointKey>,
    fits: impl Fn(EndpointKey) -> Option<bool>,
) -> Option<Vec<EndpointKey>> {
    let mut fitting = Vec::new();
    for (n, place) in all.enumerate() {
        if n >= LOOKED_AT {
            return None;
        }
        if fits(place)? {
            fitting.push(place);
        }
    }
    Some(fitting)
}
