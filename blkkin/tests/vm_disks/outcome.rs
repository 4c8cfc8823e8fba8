//! Verdict about the links of one run: how many requests have their operation, and how many have another one's.

use std::collections::{BTreeMap, HashMap, HashSet};

use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::Span;

use super::recorded::Recorded;
use super::{Operation, PROBED};

/// Counts of one run.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Requests of the guest, and those of them that have an operation of QEMU.
    pub(super) requests: usize,
    pub(super) linked: usize,
    /// Operations of QEMU that served several of them.
    pub(super) merged: usize,
    /// Operations that fill up clusters from the raw and from the qcow2 backing file, and those of both with a request.
    pub(super) fills: [usize; 2],
    pub(super) filled: [usize; 2],
    /// Operations below another request than theirs.
    pub(super) wrong: usize,
    /// Operations in another trace than their request.
    pub(super) apart: usize,
    /// Writes of the guests between two flushes, of which both are linked to the same request, or the first to one that
    /// had ended, so that QEMU had nothing to flush; of which one is linked to no request; and of which one is linked
    /// to another request.
    pub(super) between_flushes: [usize; 3],
    /// Operations below another request than theirs.
    pub(super) others: Vec<String>,
    /// Requests without an operation, within one that the host recorded and whose trace is not finished: the host
    /// missed an end below it. QEMU may have merged several requests into one such operation.
    pub(super) unfinished: usize,
    /// Ranges with requests of the guest, some of which no operation of QEMU is linked to.
    pub(super) unlinked: Vec<String>,
    /// Requests of which an operation is a part, and the last one of those with each part.
    pub(super) split: HashSet<SpanId>,
    pub(super) rounds: HashMap<(String, Operation), Option<usize>>,
    /// Requests that an operation on another range served: on several of them, or on whole blocks.
    pub(super) parts: BTreeMap<(String, Operation), usize>,
}

impl Outcome {
    pub(super) fn of(recorded: &Recorded, spans: &[Span]) -> Outcome {
        let parents: HashMap<SpanId, SpanId> =
            spans.iter().filter_map(|span| Some((span.id, span.parent?))).collect();
        let finished: HashMap<SpanId, TraceId> = spans.iter().map(|span| (span.id, span.trace)).collect();
        // The host may see this request before it knows the disks.
        let is_probe =
            |(disk, range): &(String, Operation)| disk.ends_with("/vda") && range.1 == PROBED * 512;
        let probes: Vec<SpanId> = recorded
            .guest
            .iter()
            .filter(|(key, _)| is_probe(key))
            .flat_map(|(_, spans)| spans.clone())
            .collect();
        let all: usize = recorded.guest.values().map(Vec::len).sum();
        let mut outcome = Outcome { requests: all - probes.len(), ..Outcome::default() };
        outcome.count_between_flushes(recorded, &parents);
        let operations =
            recorded.qemu.values().flatten().chain(recorded.journals.values().map(|(_, span)| span));
        let linked = operations.filter_map(|server| Some((server, parents.get(server)?)));
        outcome.apart =
            linked.filter(|(server, parent)| finished.get(server) != finished.get(parent)).count();
        for ((disk, range), served) in &recorded.qemu {
            if range.0 == 'f' {
                // No request of the guest has this range.
                outcome.count_fills(recorded, disk, *range, served.iter().map(|server| parents.get(server)));
                continue;
            }
            let requests = recorded.guest.get(&(disk.clone(), *range));
            let mut last = None;
            for (n, server) in served.iter().enumerate() {
                let parent = parents.get(server).filter(|parent| !probes.contains(parent));
                let Some(parent) = parent else { continue };
                let Some(at) = requests.and_then(|requests| requests.iter().position(|one| one == parent))
                else {
                    outcome.merge(recorded, disk, *range, *parent);
                    continue;
                };
                // Of equal numbers the n-th belongs to the n-th; where QEMU merged some, they follow each other.
                let all = requests.is_some_and(|requests| requests.len() == served.len());
                match if all { at == n } else { last < Some(at) } {
                    true => outcome.linked += 1,
                    false => outcome.add_wrong(disk, *range, *parent),
                }
                last = Some(at);
            }
        }
        let unfinished: Vec<&(String, Operation)> = recorded
            .qemu
            .iter()
            .filter(|(_, served)| served.iter().any(|server| !finished.contains_key(server)))
            .map(|(key, _)| key)
            .collect();
        let contains = |(of, outer): &(String, Operation), (disk, range): &(String, Operation)| {
            of == disk && outer.0 == range.0 && outer.1 <= range.1 && range.1 + range.2 <= outer.1 + outer.2
        };
        for (key, requests) in recorded.guest.iter().filter(|(key, _)| !is_probe(key)) {
            let served = recorded.qemu.get(key).map_or(&[][..], |served| served);
            let own = |server: &&SpanId| parents.get(server).is_some_and(|parent| requests.contains(parent));
            let linked = served.iter().filter(own).count();
            let parts = outcome.parts.get(key).copied().unwrap_or_default();
            let without = requests.len().saturating_sub(linked + parts);
            if without == 0 {
                continue;
            }
            let is_unfinished = unfinished.iter().any(|operation| contains(operation, key));
            outcome.unfinished += if is_unfinished { without } else { 0 };
            outcome.unlinked.push(format!(
                "{key:?}: {} requests, {} operations, {} linked{}",
                requests.len(),
                served.len(),
                linked + parts,
                if is_unfinished { ", unfinished" } else { "" }
            ));
        }
        outcome.unlinked.truncate(20);
        outcome
    }

    /// Counts reads that fill up a cluster.
    fn count_fills<'a>(
        &mut self,
        recorded: &Recorded,
        disk: &str,
        range: Operation,
        parents: impl Iterator<Item = Option<&'a SpanId>>,
    ) {
        // The guest's kernel looks for partitions before its agent starts.
        if range.1 == 0 && range.2 == 4096 {
            return;
        }
        let kind = usize::from(!disk.ends_with("vdb"));
        for parent in parents {
            self.fills[kind] += 1;
            match parent {
                Some(parent) if recorded.is_rest(disk, range, *parent) => self.filled[kind] += 1,
                Some(parent) => self.add_wrong(disk, range, *parent),
                None => {}
            }
        }
    }

    /// Counts writes between two flushes. One request follows another on this disk, so its operations do too.
    fn count_between_flushes(&mut self, recorded: &Recorded, parents: &HashMap<SpanId, SpanId>) {
        let all: Vec<(&str, bool, SpanId)> = recorded
            .journals
            .iter()
            .map(|((disk, _), (write, span))| (disk.as_str(), *write, *span))
            .collect();
        for three in all.windows(3) {
            let [before, (disk, true, span), after] = three else { continue };
            let Some(request) = parents.get(span).filter(|one| recorded.between_flushes.contains(one)) else {
                continue;
            };
            // A neighbour that is no flush stands for one that the host missed.
            let flushes = [before, after]
                .map(|(of, write, flush)| if of == disk && !write { parents.get(flush) } else { None });
            let ended_before = |other: &SpanId| recorded.times[other][1] <= recorded.times[request][0];
            let is_right = [
                flushes[0].is_none_or(|before| before == request || ended_before(before)),
                flushes[1].is_none_or(|after| after == request),
            ];
            let kind = match (is_right, flushes) {
                ([true, true], [Some(_), Some(_)]) => 0,
                ([true, true], _) => 1,
                _ => 2,
            };
            if kind == 2 {
                let times = |span: &SpanId| (*span, recorded.times.get(span));
                self.others.push(format!(
                    "{three:?} of {:?} instead of {:?}",
                    flushes.map(|flush| flush.map(times)),
                    times(request)
                ));
            }
            self.between_flushes[kind] += 1;
        }
    }

    /// Counts an operation on another range than its request's: it serves several that follow each other, of which the
    /// parent is the first, or the range is rounded to blocks of 4 KiB or clusters of 64 KiB.
    fn merge(
        &mut self,
        recorded: &Recorded,
        disk: &str,
        (operation, start, bytes): Operation,
        parent: SpanId,
    ) {
        let is_parent = |((name, range), requests): (&(String, Operation), &Vec<SpanId>)| {
            (name == disk && requests.contains(&parent)).then_some(*range)
        };
        let of_parent = recorded.guest.iter().find_map(is_parent).filter(|range| range.0 == operation);
        let end = start + bytes;
        match of_parent {
            // QEMU splits a request where its clusters do not follow each other in the image.
            Some((_, at, length)) if at <= start && end <= at + length => {
                let requests = &recorded.guest[&(disk.to_owned(), (operation, at, length))];
                let round = requests.iter().position(|one| *one == parent);
                let last = self.rounds.insert((disk.to_owned(), (operation, start, bytes)), round);
                if last.is_some_and(|last| last >= round) {
                    return self.add_wrong(disk, (operation, start, bytes), parent);
                }
                if self.split.insert(parent) {
                    self.linked += 1;
                    *self.parts.entry((disk.to_owned(), (operation, at, length))).or_default() += 1;
                }
            }
            Some((_, at, length))
                if [4096, 65_536].iter().any(|block| {
                    (start, end) == (at / block * block, (at + length).next_multiple_of(*block))
                }) =>
            {
                self.linked += 1;
                *self.parts.entry((disk.to_owned(), (operation, at, length))).or_default() += 1;
            }
            Some((_, at, length)) if at == start => {
                // Requests of the guest from the parent's end on.
                let (mut next, mut parts) = (at + length, vec![(operation, at, length)]);
                while next < end {
                    let follows = |(name, range): &&(String, Operation)| {
                        name == disk && (range.0, range.1) == (operation, next) && next + range.2 <= end
                    };
                    let Some((_, range)) = recorded.guest.keys().find(follows) else { break };
                    next += range.2;
                    parts.push(*range);
                }
                if next != end {
                    return self.add_wrong(disk, (operation, start, bytes), parent);
                }
                (self.linked, self.merged) = (self.linked + parts.len(), self.merged + 1);
                for range in parts {
                    *self.parts.entry((disk.to_owned(), range)).or_default() += 1;
                }
            }
            // QEMU may write the rest of a cluster on its own.
            _ if recorded.is_rest(disk, (operation, start, bytes), parent) => {}
            _ => self.add_wrong(disk, (operation, start, bytes), parent),
        }
    }

    fn add_wrong(&mut self, disk: &str, operation: Operation, parent: SpanId) {
        self.wrong += 1;
        self.others.push(format!("{disk} {operation:?} below {parent:?}"));
    }
}
