//! Layers of an operation of a guest: the time of each, from the guest's kernel to the device.
//!
//! *In*: the spans of its trace, those of the guest and those of the machines that served its requests. *Out*: the time of each
//! layer. *Invariant*: the sum is the duration of the operation, since each moment belongs to the innermost layer that was at
//! work then. What lasts longer than the operation is cut.
//!
//! *Rejected*: the sum of the spans of each layer. Requests overlap, and each contains those below it.

use std::collections::HashMap;
use std::ops::{AddAssign, Range};

use blkkin_wire::clock::DurationNs;
use blkkin_wire::ids::SpanId;

/// Layer of a guest's operation, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GuestLayer {
    /// The guest's kernel: system call and file system.
    GuestKernel,
    /// A commit of the journal of the guest's file system.
    GuestJournal,
    /// A request of the guest's disk without an operation of QEMU in progress: virtio, and QEMU itself.
    Qemu,
    /// An NBD request of QEMU of which the server's part is not known: the network and the server.
    Nbd,
    /// An NBD request of QEMU that its server has not received yet, or has answered.
    Network,
    /// An NBD server, outside of its system calls.
    Daemon,
    /// A system call of QEMU or of the NBD server, with its file system and block layer.
    HostKernel,
    /// A request of a disk that is no guest's.
    Device,
}

impl GuestLayer {
    /// Layers, outermost first.
    pub(crate) const ALL: [GuestLayer; 8] = [
        GuestLayer::GuestKernel,
        GuestLayer::GuestJournal,
        GuestLayer::Qemu,
        GuestLayer::Nbd,
        GuestLayer::Network,
        GuestLayer::Daemon,
        GuestLayer::HostKernel,
        GuestLayer::Device,
    ];

    /// Returns the name in tables and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            GuestLayer::GuestKernel => "guest kernel",
            GuestLayer::GuestJournal => "guest journal",
            GuestLayer::Qemu => "QEMU",
            GuestLayer::Nbd => "NBD",
            GuestLayer::Network => "network",
            GuestLayer::Daemon => "daemon",
            GuestLayer::HostKernel => "host kernel",
            GuestLayer::Device => "device",
        }
    }

    /// Returns where the time went, for a sentence.
    pub(crate) fn place(self) -> &'static str {
        match self {
            GuestLayer::GuestKernel => "in the guest's kernel",
            GuestLayer::GuestJournal => "in the guest's journal",
            GuestLayer::Qemu => "in QEMU and virtio",
            GuestLayer::Nbd => "at the NBD server and on the way",
            GuestLayer::Network => "in transit to and from the NBD server",
            GuestLayer::Daemon => "in the NBD server outside of calls",
            GuestLayer::HostKernel => "in the host's kernel",
            GuestLayer::Device => "at the host's disks",
        }
    }
}

/// Time of each layer, in the order of [`GuestLayer::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerTimes(pub(crate) [DurationNs; GuestLayer::ALL.len()]);

impl LayerTimes {
    pub(crate) fn of(&self, layer: GuestLayer) -> DurationNs {
        self.0[layer as usize]
    }

    pub(crate) fn total(&self) -> DurationNs {
        DurationNs(self.0.iter().fold(0, |sum, time| sum.saturating_add(time.0)))
    }

    /// Returns the layers with their times, the longest first.
    pub(crate) fn by_time(&self) -> Vec<(GuestLayer, DurationNs)> {
        let mut all: Vec<_> = GuestLayer::ALL.into_iter().map(|layer| (layer, self.of(layer))).collect();
        // Stable: equal times stay in the order of the layers.
        all.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        all
    }
}

impl AddAssign for LayerTimes {
    fn add_assign(&mut self, other: LayerTimes) {
        for (sum, time) in self.0.iter_mut().zip(other.0) {
            sum.0 = sum.0.saturating_add(time.0);
        }
    }
}

/// Role of a span in the layers, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    Request,
    JournalCommit,
    Nbd,
    Other,
}

/// Part of a trace: a span without its tags.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) id: SpanId,
    pub(crate) parent: Option<SpanId>,
    /// Wall clock of the guest, ns.
    pub(crate) time: Range<u64>,
    pub(crate) kind: PartKind,
    /// Machine, on the first span of each part of a trace.
    pub(crate) is_guests: Option<bool>,
    pub(crate) label: Box<str>,
}

/// Parts of a trace in the order of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) parts: Vec<PlacedPart>,
}

/// A part with its place.
#[derive(Clone, Debug)]
pub(crate) struct PlacedPart {
    pub(crate) part: Part,
    pub(crate) depth: usize,
    pub(crate) layer: GuestLayer,
    /// True if a part below is of another machine.
    pub(crate) is_served: bool,
}

impl Tree {
    /// Orders the parts below the root. Parts that are not below it are left out.
    pub(crate) fn of(root: SpanId, parts: Vec<Part>) -> Option<Tree> {
        let mut below: HashMap<SpanId, Vec<Part>> = HashMap::new();
        let mut first = None;
        for part in parts {
            match part.parent {
                _ if part.id == root => first = Some(part),
                Some(parent) => below.entry(parent).or_default().push(part),
                None => {}
            }
        }
        below.values_mut().for_each(|parts| parts.sort_by_key(|part| (part.time.start, part.id)));
        let mut tree = Tree { parts: Vec::new() };
        let place = Place { depth: 0, layer: GuestLayer::GuestKernel, is_guests: true, is_in_nbd: false };
        tree.place(first?, place, &mut below);
        Some(tree)
    }

    /// Adds a part and those below it. Returns whether one of them is of another machine than the guest.
    fn place(&mut self, part: Part, above: Place, below: &mut HashMap<SpanId, Vec<Part>>) -> bool {
        let is_guests = part.is_guests.unwrap_or(above.is_guests);
        let layer = match (part.kind, is_guests) {
            (PartKind::Request, true) => GuestLayer::Qemu,
            (PartKind::Request, false) => GuestLayer::Device,
            (PartKind::JournalCommit, true) => GuestLayer::GuestJournal,
            (PartKind::Nbd, false) if above.is_in_nbd => GuestLayer::Daemon,
            (PartKind::Nbd, false) if has_server(part.id, below) => GuestLayer::Network,
            (PartKind::Nbd, false) => GuestLayer::Nbd,
            (_, false) => GuestLayer::HostKernel,
            (_, true) => above.layer.min(GuestLayer::GuestJournal),
        };
        let is_in_nbd = above.is_in_nbd || part.kind == PartKind::Nbd;
        let (at, id) = (self.parts.len(), part.id);
        self.parts.push(PlacedPart { part, depth: above.depth, layer, is_served: false });
        let place = Place { depth: above.depth + 1, layer, is_guests, is_in_nbd };
        let mut is_served = !is_guests;
        for child in below.remove(&id).unwrap_or_default() {
            is_served |= self.place(child, place, below);
        }
        self.parts[at].is_served = is_served;
        is_served
    }

    /// Returns the number of the guest's requests, and of those with an operation of QEMU.
    pub(crate) fn requests(&self) -> [u64; 2] {
        let requests = || self.parts.iter().filter(|one| one.layer == GuestLayer::Qemu);
        [requests().count() as u64, requests().filter(|one| one.is_served).count() as u64]
    }

    /// Returns the time of each layer.
    pub(crate) fn times(&self) -> LayerTimes {
        let root = self.parts.first().map_or(0..0, |root| root.part.time.clone());
        // Together with all layers inside it.
        let at_least = |layer: GuestLayer| {
            let parts = self.parts.iter().filter(|one| one.layer >= layer);
            union(
                parts
                    .map(|one| one.part.time.start.max(root.start)..one.part.time.end.min(root.end))
                    .collect(),
            )
        };
        let mut times = LayerTimes::default();
        let mut inner = 0;
        for layer in GuestLayer::ALL.into_iter().rev() {
            let with_inner = at_least(layer);
            times.0[layer as usize] = DurationNs(with_inner - inner);
            inner = with_inner;
        }
        times
    }
}

fn has_server(client: SpanId, below: &HashMap<SpanId, Vec<Part>>) -> bool {
    below.get(&client).is_some_and(|parts| parts.iter().any(|part| part.kind == PartKind::Nbd))
}

#[derive(Clone, Copy)]
struct Place {
    depth: usize,
    layer: GuestLayer,
    is_guests: bool,
    is_in_nbd: bool,
}

/// Returns the length of the union.
fn union(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut length, mut end) = (0, 0);
    for range in ranges {
        length += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    length
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn part(id: u64, parent: u64, label: &str, time: Range<u64>, is_guests: Option<bool>) -> Part {
        let kind = match label.split(' ').next() {
            Some("request") => PartKind::Request,
            Some("journal") => PartKind::JournalCommit,
            Some("nbd") => PartKind::Nbd,
            _ => PartKind::Other,
        };
        let parent = (parent > 0).then_some(SpanId(parent));
        Part { id: SpanId(id), parent, time, kind, is_guests, label: label.into() }
    }

    /// A call from 0 to 100 with a request from 10 to 90. QEMU's call is from 30 to 80, the device's request from 40 to 60.
    fn linked() -> Vec<Part> {
        vec![
            part(5, 4, "request write", 40..60, None),
            part(2, 1, "bio write", 5..95, None),
            part(1, 0, "pwrite64", 0..100, Some(true)),
            part(3, 2, "request write", 10..90, None),
            part(4, 3, "pwrite64", 30..80, Some(false)),
        ]
    }

    fn times(parts: Vec<Part>) -> [u64; 8] {
        let times = Tree::of(SpanId(1), parts).unwrap().times();
        assert_eq!(times.total(), DurationNs(100));
        times.0.map(|time| time.0)
    }

    #[test]
    fn each_moment_belongs_to_the_innermost_layer() {
        assert_eq!(times(linked()), [20, 0, 30, 0, 0, 0, 30, 20]);
        assert_eq!(Tree::of(SpanId(1), linked()).unwrap().requests(), [1, 1]);
    }

    #[test]
    fn what_lasts_longer_is_cut_and_what_overlaps_counts_once() {
        let mut parts = linked();
        parts.push(part(6, 2, "request write", 50..130, None));
        parts.push(part(7, 6, "fdatasync", 55..120, Some(false)));
        assert_eq!(times(parts), [10, 0, 20, 0, 0, 0, 50, 20]);
    }

    #[test]
    fn a_journal_commit_and_an_nbd_server_are_layers_of_their_own() {
        let parts = vec![
            part(1, 0, "fsync", 0..100, Some(true)),
            part(2, 1, "journal commit", 10..90, None),
            part(3, 2, "bio write", 18..82, None),
            part(4, 3, "request write", 20..80, None),
            part(5, 4, "nbd write", 30..70, Some(false)),
            part(6, 5, "nbd write", 40..60, Some(false)),
            part(7, 6, "pwrite64", 45..55, Some(false)),
            part(8, 7, "request write", 48..50, None),
        ];
        assert_eq!(times(parts.clone()), [20, 20, 20, 0, 20, 10, 8, 2]);
        // A server without spans.
        assert_eq!(times(parts[..5].to_vec()), [20, 20, 20, 40, 0, 0, 0, 0]);
    }

    #[test]
    fn a_request_without_an_operation_and_a_trace_without_its_root_are_known() {
        let mut parts = linked();
        parts.push(part(6, 2, "request flush", 91..94, None));
        assert_eq!(Tree::of(SpanId(1), parts).unwrap().requests(), [2, 1]);
        assert!(Tree::of(SpanId(9), linked()).is_none());
        // Parts that name each other as their parents are not below the root.
        let circle = vec![
            part(1, 0, "read", 0..100, Some(true)),
            part(2, 3, "a", 0..1, None),
            part(3, 2, "b", 0..1, None),
        ];
        assert_eq!(Tree::of(SpanId(1), circle).unwrap().parts.len(), 1);
    }
}
