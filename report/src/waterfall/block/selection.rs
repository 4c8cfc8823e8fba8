//! Selection of the bios and requests that get a row of their own.
//!
//! *In*: a trace's bios and requests. *Out*: each bio exactly once: shown, folded below the request
//! that it was merged into, or among the rest. *Rejected*: showing the first few bios. The record
//! of a journal commit is the last bio and the one that the caller waits for, and it was always
//! hidden in "7 more".

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::{BioEvent, RequestEvent};
use blkkin_wire::ids::SpanId;

/// Number of slowest bios of a parent with their own rows; the others are summed in one row. Three
/// show whether bios were submitted together or one after the other.
pub const BIOS_SHOWN: usize = 3;
/// Number of additional bios that flush a cache or write through it, the slowest first. A commit
/// has one record, or two with an external journal; a call that makes each write durable has any
/// number.
pub const DURABLE_SHOWN: usize = 3;

/// Maximum number of requests of a bio with rows of their own. The others are summed in one row.
const REQUESTS_SHOWN: usize = 4;

/// Bios of one parent, by how they are shown.
#[derive(Debug, Default)]
pub struct BioSelection<'a> {
    /// Bios with a row of their own, by queue time.
    pub shown: Vec<&'a BioEvent>,
    /// Bios without information of their own, by the request that they were merged into.
    pub merged: BTreeMap<SpanId, Vec<&'a BioEvent>>,
    /// Bios that are summed in one row.
    pub rest: Vec<&'a BioEvent>,
}

/// Selects among those bios of `trace` that satisfy `is_candidate`.
pub fn select(trace: &Trace, is_candidate: impl Fn(&BioEvent) -> bool) -> BioSelection<'_> {
    let foldable = foldable(trace);
    let (folded, others): (Vec<&BioEvent>, Vec<&BioEvent>) =
        trace.bios.iter().filter(|bio| is_candidate(bio)).partition(|bio| foldable.contains(&bio.span));
    let (shown, mut rest) = slowest(others);
    let shown_bios: BTreeSet<SpanId> = shown.iter().map(|bio| bio.span).collect();
    let requests =
        trace.requests.iter().filter(|request| request.parent.is_some_and(|bio| shown_bios.contains(&bio)));
    let requests: BTreeSet<SpanId> = requests.map(|request| request.span).collect();
    let mut merged: BTreeMap<SpanId, Vec<&BioEvent>> = BTreeMap::new();
    for bio in folded {
        match bio.request.filter(|request| requests.contains(request)) {
            Some(request) => merged.entry(request).or_default().push(bio),
            None => rest.push(bio),
        }
    }
    BioSelection { shown, merged, rest }
}

/// Returns the successful bios that add no information to their request: they were merged into a
/// request of this trace whose parent is another bio of it.
fn foldable(trace: &Trace) -> BTreeSet<SpanId> {
    let bios: BTreeSet<SpanId> = trace.bios.iter().map(|bio| bio.span).collect();
    let parents: BTreeSet<SpanId> = trace.requests.iter().filter_map(|request| request.parent).collect();
    let children =
        trace.requests.iter().filter(|request| request.parent.is_some_and(|bio| bios.contains(&bio)));
    let children: BTreeSet<SpanId> = children.map(|request| request.span).collect();
    let carried: BTreeSet<SpanId> = trace.merged_into.iter().map(|carried| carried.bio).collect();
    let is_foldable = |bio: &&BioEvent| {
        let merged = !bio.first && bio.request.is_some_and(|request| children.contains(&request));
        let has_request = parents.contains(&bio.span) || carried.contains(&bio.span);
        merged && !has_request && bio.status.is_ok() && !is_durable(bio)
    };
    trace.bios.iter().filter(is_foldable).map(|bio| bio.span).collect()
}

/// Returns the slowest bios with the slowest durable ones, by queue time, and the others. A single
/// bio is always shown, because its sum would need the same row.
fn slowest(bios: Vec<&BioEvent>) -> (Vec<&BioEvent>, Vec<&BioEvent>) {
    let mut by_time = bios.clone();
    // Both sorts are stable: equal times keep the order of the trace.
    by_time.sort_by_key(|bio| Reverse(bio.end.since(bio.queue)));
    let (first, others) = by_time.split_at(BIOS_SHOWN.min(by_time.len()));
    let durable = others.iter().filter(|bio| is_durable(bio)).take(DURABLE_SHOWN);
    let selected: BTreeSet<SpanId> = first.iter().chain(durable).map(|bio| bio.span).collect();
    let all = bios.len() <= selected.len() + 1;
    let (mut shown, rest): (Vec<&BioEvent>, Vec<&BioEvent>) =
        bios.into_iter().partition(|bio| all || selected.contains(&bio.span));
    shown.sort_by_key(|bio| bio.queue);
    (shown, rest)
}

fn is_durable(bio: &BioEvent) -> bool {
    bio.op.is_preflush() || bio.op.is_fua()
}

/// Splits the requests of a bio into the slowest, in their order, and the others: a bio of 8 MiB has 64 requests of 128 KiB.
pub fn slowest_requests<'a>(
    requests: impl Iterator<Item = &'a RequestEvent>,
) -> (Vec<&'a RequestEvent>, Vec<&'a RequestEvent>) {
    let all: Vec<&RequestEvent> = requests.collect();
    // A row "+ 1 more request" would need as much room as the request's own.
    if all.len() <= REQUESTS_SHOWN + 1 {
        return (all, Vec::new());
    }
    let mut by_time: Vec<&RequestEvent> = all.clone();
    // A failure is shown in any case. Stable: of equal times the first in the trace's order.
    by_time.sort_by_key(|request| Reverse((!request.status.is_ok(), request.complete.since(request.start))));
    let shown: BTreeSet<SpanId> = by_time[..REQUESTS_SHOWN].iter().map(|request| request.span).collect();
    all.into_iter().partition(|request| shown.contains(&request.span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::request;

    #[test]
    fn the_slowest_requests_of_a_bio_are_shown_in_their_order() {
        let times = [5, 5, 5, 5, 10, 5, 1];
        let all: Vec<RequestEvent> =
            times.iter().zip(1..).map(|(time, span)| request(span, 100, Some(100), 100 + time)).collect();
        let (shown, more) = slowest_requests(all.iter());
        let spans = |requests: &[&RequestEvent]| requests.iter().map(|one| one.span).collect::<Vec<_>>();
        let of = |numbers: &[usize]| numbers.iter().map(|at| all[*at].span).collect::<Vec<_>>();
        assert_eq!((spans(&shown), spans(&more)), (of(&[0, 1, 2, 4]), of(&[3, 5, 6])));
        // One more than is shown has a row of its own.
        assert_eq!(slowest_requests(all[..5].iter()).1.len(), 0);
    }
}
