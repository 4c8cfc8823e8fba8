//! Which bios of a parent get a row of their own.
//!
//! *In*: a trace's bios and requests. *Out*: each bio exactly once: shown, folded below the request that it was merged
//! into, or among the rest. *Rejected*: the first few. A commit's record is its last bio, and the one that the
//! caller waits for: it was always among "7 more".

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::BioEvent;
use blkkin_wire::ids::SpanId;

/// A parent's bios that are shown one by one for their time, the slowest; more are summed in one row. Three show
/// whether they went out together or one after the other.
pub const BIOS_SHOWN: usize = 3;
/// Those shown besides because they flush a cache or write through it, the slowest: a commit has one record, two
/// where the journal is a device of its own; a call that makes each of its writes durable has any number.
pub const DURABLE_SHOWN: usize = 3;

/// A parent's bios.
#[derive(Debug, Default)]
pub struct Choice<'a> {
    /// With a row of their own, by time.
    pub shown: Vec<&'a BioEvent>,
    /// By the request that they were merged into, whose first bio is shown.
    pub merged: BTreeMap<SpanId, Vec<&'a BioEvent>>,
    /// All others.
    pub rest: Vec<&'a BioEvent>,
}

/// Chooses among those bios of `of` that `are_here`.
pub fn choose(of: &Trace, are_here: impl Fn(&BioEvent) -> bool) -> Choice<'_> {
    let says_nothing = silent(of);
    let (silent, heads): (Vec<&BioEvent>, Vec<&BioEvent>) =
        of.bios.iter().filter(|bio| are_here(bio)).partition(|bio| says_nothing.contains(&bio.span));
    let (shown, mut rest) = slowest(heads);
    let here: BTreeSet<SpanId> = shown.iter().map(|bio| bio.span).collect();
    let requests = of.requests.iter().filter(|request| request.parent.is_some_and(|bio| here.contains(&bio)));
    let requests: BTreeSet<SpanId> = requests.map(|request| request.span).collect();
    let mut merged: BTreeMap<SpanId, Vec<&BioEvent>> = BTreeMap::new();
    for bio in silent {
        match bio.request.filter(|request| requests.contains(request)) {
            Some(request) => merged.entry(request).or_default().push(bio),
            None => rest.push(bio),
        }
    }
    Choice { shown, merged, rest }
}

/// The bios of which their request says all there is: merged into one of this trace that hangs below another bio of it,
/// and ended well.
fn silent(of: &Trace) -> BTreeSet<SpanId> {
    let bios: BTreeSet<SpanId> = of.bios.iter().map(|bio| bio.span).collect();
    let parents: BTreeSet<SpanId> = of.requests.iter().filter_map(|request| request.parent).collect();
    let hanging = of.requests.iter().filter(|request| request.parent.is_some_and(|bio| bios.contains(&bio)));
    let hanging: BTreeSet<SpanId> = hanging.map(|request| request.span).collect();
    let carried: BTreeSet<SpanId> = of.carried.iter().map(|carried| carried.bio).collect();
    let is_silent = |bio: &&BioEvent| {
        let merged = !bio.first && bio.request.is_some_and(|request| hanging.contains(&request));
        let has_request = parents.contains(&bio.span) || carried.contains(&bio.span);
        merged && !has_request && bio.status.is_ok() && !is_durable(bio)
    };
    of.bios.iter().filter(is_silent).map(|bio| bio.span).collect()
}

/// The slowest, with the slowest of those that make durable, by time; and the others. One bio is never summed.
fn slowest(bios: Vec<&BioEvent>) -> (Vec<&BioEvent>, Vec<&BioEvent>) {
    let mut by_time = bios.clone();
    // Stable, as the one below: of equals the first.
    by_time.sort_by_key(|bio| Reverse(bio.end.since(bio.queue)));
    let (first, others) = by_time.split_at(BIOS_SHOWN.min(by_time.len()));
    let durable = others.iter().filter(|bio| is_durable(bio)).take(DURABLE_SHOWN);
    let here: BTreeSet<SpanId> = first.iter().chain(durable).map(|bio| bio.span).collect();
    let all = bios.len() <= here.len() + 1;
    let (mut shown, rest): (Vec<&BioEvent>, Vec<&BioEvent>) =
        bios.into_iter().partition(|bio| all || here.contains(&bio.span));
    shown.sort_by_key(|bio| bio.queue);
    (shown, rest)
}

fn is_durable(bio: &BioEvent) -> bool {
    bio.op.is_preflush() || bio.op.is_fua()
}
