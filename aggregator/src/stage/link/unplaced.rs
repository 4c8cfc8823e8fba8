//! Operations of QEMU on images with clusters of which the place in the guest's disk is not known yet.
//!
//! *In*: such operations, and the guest's requests. *Out*: pairs of both for the [`ClusterMap`], and the operations of
//! which it knows the place now.
//!
//! *Invariant*: a pair has equal operations and equal ranges within a cluster, or QEMU's is the guest's range rounded to
//! whole clusters; the request's time contains the operation's; and neither has another candidate, or the map prefers
//! only this one.

use std::collections::{BTreeMap, BTreeSet};

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

use super::clusters::{ClusterMap, Pair, clusters, rounded, within_cluster};
use super::disk::{Place, Waiting};

/// Operations and requests of a disk in an image with clusters.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Unplaced {
    pub(super) map: ClusterMap,
    /// Operations without a place, by their range in the image.
    operations: BTreeMap<Place, Waiting>,
    /// They by their range within a cluster, and by each cluster of the image.
    by_offset: BTreeSet<(u64, Place)>,
    by_cluster: BTreeSet<(u64, Place)>,
    /// Waiting requests of the guest by their ranges within a cluster.
    requests: BTreeSet<(u64, Place)>,
    /// Cookies in the guest's disk of waiting operations that have a place, by number.
    placed: BTreeMap<u64, u64>,
}

/// Returns the cookies under which QEMU's operation for a request may be found: its range, and whole clusters.
fn offsets(request: DiskRequest) -> impl Iterator<Item = u64> {
    let exact = within_cluster(request);
    let whole = rounded(request).map(within_cluster).filter(|whole| *whole != exact);
    std::iter::once(exact).chain(whole).map(DiskRequest::cookie)
}

/// Returns whether an operation may be on clusters: a flush is on the whole disk.
pub(super) fn is_on_clusters(cookie: u64) -> bool {
    DiskRequest::from_cookie(cookie).operation != DiskOperation::Flush
}

impl Unplaced {
    /// Adds a request of the guest.
    pub(super) fn add_request(&mut self, place: Place) {
        if is_on_clusters(place.0) {
            self.requests.extend(offsets(DiskRequest::from_cookie(place.0)).map(|offset| (offset, place)));
        }
    }

    /// Removes a request that does not wait any more.
    pub(super) fn remove_request(&mut self, place: Place) {
        if is_on_clusters(place.0) {
            offsets(DiskRequest::from_cookie(place.0)).for_each(|offset| {
                self.requests.remove(&(offset, place));
            });
        }
    }

    /// Returns the cookie of an operation in the guest's disk, if it has a place, and notes it for
    /// [`Self::placed`].
    pub(super) fn guest_cookie(&mut self, place: Place) -> Option<u64> {
        let cookie = match is_on_clusters(place.0) {
            true => self.map.guest_range(DiskRequest::from_cookie(place.0))?.cookie(),
            false => place.0,
        };
        self.placed.insert(place.1, cookie);
        Some(cookie)
    }

    /// Adds an operation without a place.
    pub(super) fn add(&mut self, place: Place, operation: Waiting) {
        let range = DiskRequest::from_cookie(place.0);
        self.by_offset.insert((within_cluster(range).cookie(), place));
        self.by_cluster.extend(clusters(range).map(|cluster| (cluster, place)));
        self.operations.insert(place, operation);
    }

    /// Takes an operation without a place.
    pub(super) fn take(&mut self, place: Place) -> Option<Waiting> {
        let operation = self.operations.remove(&place)?;
        let range = DiskRequest::from_cookie(place.0);
        self.by_offset.remove(&(within_cluster(range).cookie(), place));
        for cluster in clusters(range) {
            self.by_cluster.remove(&(cluster, place));
        }
        Some(operation)
    }

    /// Returns an operation without a place.
    pub(super) fn get_mut(&mut self, place: Place) -> Option<&mut Waiting> {
        self.operations.get_mut(&place)
    }

    /// Returns where an operation waits that has a place.
    pub(super) fn placed(&self, place: Place) -> Option<Place> {
        self.placed.get(&place.1).map(|cookie| (*cookie, place.1))
    }

    /// Forgets an operation with a place that does not wait any more.
    pub(super) fn forget_placed(&mut self, number: u64) {
        self.placed.remove(&number);
    }

    /// Returns the operations without a place that may serve a request.
    pub(super) fn operations_for(&self, request: DiskRequest) -> Vec<Place> {
        offsets(request).flat_map(|offset| places(&self.by_offset, offset)).collect()
    }

    /// Returns the operations without a place on these clusters of the image.
    pub(super) fn operations_on(&self, clusters: &[u64]) -> BTreeSet<Place> {
        clusters.iter().flat_map(|cluster| places(&self.by_cluster, *cluster)).collect()
    }

    /// Returns the request that an operation without a place serves, if there is no doubt. `fits`: whether a request
    /// contains an operation in time and has no other one; none if that is not certain yet.
    pub(super) fn request_of(
        &self,
        place: Place,
        now: LogTime,
        fits: impl Fn(Place, &Waiting) -> Option<bool>,
    ) -> Option<Place> {
        let operation = self.operations.get(&place)?;
        let range = DiskRequest::from_cookie(place.0);
        let mut candidates = Vec::new();
        for request in places(&self.requests, within_cluster(range).cookie()) {
            if fits(request, operation)? {
                candidates.push(request);
            }
        }
        let request = self.only(&candidates, |request| pair(place, *request, now))?;
        let mut others = self.operations_for(DiskRequest::from_cookie(request.0));
        others.retain(|other| {
            let operation = self.operations.get(other);
            operation.is_some_and(|operation| fits(request, operation) == Some(true))
        });
        let only = self.only(&others, |other| pair(*other, request, now));
        (only == Some(place)).then_some(request)
    }

    /// Returns the only one of these, or the only one of which the map prefers the pair.
    fn only(&self, of: &[Place], pair: impl Fn(&Place) -> Pair) -> Option<Place> {
        if let [one] = of {
            return Some(*one);
        }
        let mut preferred = of.iter().filter(|place| self.map.prefers(&pair(place)));
        preferred.next().filter(|_| preferred.next().is_none()).copied()
    }
}

/// Returns the pair of an operation and a request.
pub(super) fn pair(operation: Place, request: Place, at: LogTime) -> Pair {
    let [host, guest] = [operation, request].map(|place| DiskRequest::from_cookie(place.0));
    Pair { host, guest, request: request.1, at }
}

fn places(of: &BTreeSet<(u64, Place)>, key: u64) -> impl Iterator<Item = Place> {
    of.range((key, (0, 0))..=(key, (u64::MAX, u64::MAX))).map(|(_, place)| *place)
}
