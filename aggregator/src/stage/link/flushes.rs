//! Chooses the requests of a guest for which QEMU flushed an image.
//!
//! *In*: a flush of QEMU, the guest's flushes that may contain it in time, and by the same clocks the flushes inside a
//! request and the requests around a flush. *Out*: the requests that it serves.
//!
//! A flush of the guest has one of QEMU. A write has one for PREFLUSH, before its data, and one for FUA, after it: so
//! many flush endpoints its span has. No event reports when the data was written, so each of them has the times of the
//! write.
//!
//! *Invariant*: a request claims a flush only if the flush can be of no other one. Another one cannot claim it if it is
//! full: as many flushes that are inside no further request are its own as it has endpoints. So a request inside a
//! longer one has its flush if the longer one has all of its own. QEMU skips a flush if it has nothing to write, and the
//! host can miss one. Then the longer one is not full, and neither claims the flush that both may contain.
//! Several requests claim one flush only if they were issued at the same moment: the guest's block layer serves them
//! with one. An image with clusters may be flushed several times for a request, so there a request claims all that fit.
//!
//! A request inside which more than [`INSIDE_MAX`] flushes may be leaves a choice for all of them, and so does a flush in more
//! requests: each would be compared with each.
//!
//! *Limit*: each flush is taken for one of the recorded requests. If a request that is not recorded flushes while a write
//! is in progress, and QEMU had nothing to flush for that write, its flush is the write's. A filter of the guest's agent
//! can leave out such a request.
//!
//! *Rejected*: a request claims what is inside it if that is no more than it has endpoints. Of two requests in a row,
//! with clocks that are known to more than the pause between them, the first claims the second one's flush if its own
//! was skipped.

use blkkin_wire::ids::SpanId;

use super::waiting::{Candidate, EndpointKey, State};

/// Maximum number of flushes that may be inside a request of which the own ones are counted.
const INSIDE_MAX: usize = 256;

/// Flushes and requests of one disk, by what is known of the clocks.
pub(super) trait Flushes {
    /// Returns up to this number of the flushes of QEMU that may be inside a request.
    fn inside<'a>(&'a self, request: &Candidate<'a>, max: usize) -> Vec<Candidate<'a>>;

    /// Returns whether a flush of QEMU can be of no other request. False if others may still arrive.
    fn can_only_be_of(&self, flush: &Candidate<'_>, request: SpanId) -> bool;
}

/// Endpoints of one request.
struct Request<'a> {
    /// Endpoint to which a flush is linked, if possible one without a flush.
    first: Candidate<'a>,
    /// Number of endpoints without a flush.
    free: usize,
}

/// Returns the requests that a flush of QEMU serves, one endpoint of each. None if there is a choice, or none claims it.
pub(super) fn claimants(
    flush: EndpointKey,
    candidates: &[Candidate<'_>],
    in_clusters: bool,
    of_disk: &impl Flushes,
) -> Option<Vec<EndpointKey>> {
    if candidates.len() > INSIDE_MAX {
        return None;
    }
    let mut requests = by_request(candidates);
    if !in_clusters {
        let mut with_room = Vec::new();
        for request in requests {
            if has_room(&request, flush, of_disk)? {
                with_room.push(request);
            }
        }
        requests = with_room;
    }
    let begin = |request: &Request<'_>| request.first.1.endpoint.event.begin;
    let first = begin(requests.first()?);
    if requests.iter().any(|request| begin(request) != first) {
        return None;
    }
    if !in_clusters && requests.len() > 1 {
        requests.retain(|request| of_disk.inside(&request.first, request.free + 1).len() <= request.free);
    }
    (!requests.is_empty()).then(|| requests.iter().map(|request| *request.first.0).collect())
}

/// Groups endpoints by request.
fn by_request<'a>(candidates: &[Candidate<'a>]) -> Vec<Request<'a>> {
    let is_free = |one: &Candidate<'_>| one.1.state == State::Open;
    let mut sorted = candidates.to_vec();
    sorted.sort_unstable_by_key(|one| (span(one), !is_free(one), one.0));
    let groups = sorted.chunk_by(|one, other| span(one) == span(other));
    groups
        .map(|group| Request { first: group[0], free: group.iter().filter(|one| is_free(one)).count() })
        .collect()
}

/// Returns whether a request has an endpoint for this flush, apart from those for the flushes that can only be its own. None if
/// there are too many.
fn has_room(request: &Request<'_>, flush: EndpointKey, of_disk: &impl Flushes) -> Option<bool> {
    let inside = of_disk.inside(&request.first, INSIDE_MAX + 1);
    if request.free == 0 || inside.len() <= request.free.min(INSIDE_MAX) {
        return Some(request.free > 0);
    }
    if inside.len() > INSIDE_MAX {
        return None;
    }
    let is_own = |other: &&Candidate<'_>| of_disk.can_only_be_of(other, span(&request.first));
    let own = inside.iter().filter(|other| *other.0 != flush).filter(is_own).take(request.free).count();
    Some(own < request.free)
}

fn span(candidate: &Candidate<'_>) -> SpanId {
    candidate.1.endpoint.event.span
}
