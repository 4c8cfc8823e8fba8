//! Chooses the requests of a guest for which QEMU flushed an image.
//!
//! *In*: the guest's flushes that may contain one of QEMU's in time, and how many of QEMU's each of them may contain.
//! *Out*: those that it serves.
//!
//! A flush of the guest has one of QEMU. A write has one for PREFLUSH, before its data, and one for FUA, after it: so
//! many flush endpoints its span has. No event reports when the data was written, so each of them has the times of the
//! write.
//!
//! *Invariant*: a request claims a flush of QEMU only if no more of them fit in its time than it has endpoints without
//! one. So a request inside a longer one has its flush, and the longer one has none that may be of another.
//! Several requests claim one flush only if they were issued at the same moment: the guest's block layer serves them
//! with one. An image with clusters may be flushed several times for a request, so there a request claims all that fit.
//!
//! *Limit*: if a request that is not recorded flushes while a write is in progress, and QEMU had nothing to flush for
//! that write, its flush is the write's. A filter of the guest's agent can leave out such a request.

use super::waiting::{Candidate, Place, State};

/// Returns the requests that a flush of QEMU serves, one endpoint of each. None if there is a choice, or none claims it.
/// `fitting` counts the flushes of QEMU that may be inside a request.
pub(super) fn claimants(
    candidates: &[Candidate<'_>],
    in_clusters: bool,
    fitting: impl Fn(&Candidate<'_>) -> usize,
) -> Option<Vec<Place>> {
    let span = |one: &Candidate<'_>| one.1.endpoint.event.span;
    let is_open = |one: &Candidate<'_>| one.1.state == State::Open;
    // One endpoint of each request, if possible without a flush.
    let mut by_request = candidates.to_vec();
    by_request.sort_unstable_by_key(|one| (span(one), !is_open(one), one.0));
    let mut claiming: Vec<Candidate<'_>> = Vec::new();
    for of_request in by_request.chunk_by(|one, other| span(one) == span(other)) {
        let without = of_request.iter().filter(|one| is_open(one)).count();
        if in_clusters || fitting(&of_request[0]) <= without {
            claiming.push(of_request[0]);
        }
    }
    let begin = |one: &Candidate<'_>| one.1.endpoint.event.begin;
    let first = claiming.first().map(begin)?;
    claiming.iter().all(|one| begin(one) == first).then(|| claiming.iter().map(|one| *one.0).collect())
}
