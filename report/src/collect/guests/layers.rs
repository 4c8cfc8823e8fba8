//! Layers of an operation of a guest: the time of each, from the guest's kernel to the device.
//!
//! *In*: the spans of its trace, those of the guest and those of the machines that served its requests. *Out*: the time of each
//! layer. *Invariant*: the sum is the duration of the operation, since each moment belongs to the innermost layer that was at
//! work then. What lasts longer than the operation is cut.
//!
//! *Rejected*: the sum of the spans of each layer. Requests overlap, and each contains those below it.

use std::cmp::Reverse;
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
            GuestLayer::Nbd => "at the NBD server or in transit",
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
        all.sort_by_key(|(_, time)| Reverse(*time));
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

/// Role of a span in the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    Request,
    JournalCommit,
    /// Span of a daemon, or of an NBD client.
    Daemon,
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
    /// True for an operation that makes data durable.
    pub(crate) is_flush: bool,
    /// True for the root of a trace that the linker moved below its client.
    pub(crate) is_moved: bool,
    /// Machine; none if it is that of the parent.
    pub(crate) host: Option<Box<str>>,
    pub(crate) label: Box<str>,
}

/// Request of a guest to a disk of QEMU, by the guest's own trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnRequest {
    /// Time of its issue, by the guest's wall clock; none if it is not known. Before, it waited in the guest.
    pub(crate) issue: Option<u64>,
    /// Number of flushes that it needs of QEMU.
    pub(crate) flushes: u32,
    pub(crate) has_data: bool,
}

/// Parts of an operation in the order of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) parts: Vec<PlacedPart>,
    requests: [u64; 2],
}

/// A part with its place.
#[derive(Clone, Debug)]
pub(crate) struct PlacedPart {
    pub(crate) part: Part,
    pub(crate) depth: usize,
    pub(crate) layer: GuestLayer,
    /// True for the first part of another machine than the guest's.
    pub(crate) is_served: bool,
}

/// Place of the parts below a part.
#[derive(Clone, Copy)]
struct PartPosition {
    depth: usize,
    layer: GuestLayer,
    is_guests: bool,
    is_in_daemon: bool,
}

impl Tree {
    /// Orders an operation of the guest with the tag `host`: its root, and the parts below it, by parent. Takes these
    /// out of `below`.
    pub(crate) fn of(
        root: Part,
        below: &mut HashMap<SpanId, Vec<Part>>,
        host: &str,
        requests: &HashMap<SpanId, OwnRequest>,
    ) -> Tree {
        let mut tree = Tree { parts: Vec::new(), requests: [0; 2] };
        let place =
            PartPosition { depth: 0, layer: GuestLayer::GuestKernel, is_guests: true, is_in_daemon: false };
        let mut open = vec![(root, place)];
        // Without recursion: a guest chooses the depth.
        while let Some((mut part, above)) = open.pop() {
            let mut children = below.remove(&part.id).unwrap_or_default();
            // The next part is the last one here.
            children.sort_by_key(|part| Reverse((part.time.start, part.id)));
            let own = requests.get(&part.id);
            let is_guests = match &part.host {
                Some(name) => **name == *host,
                None => above.is_guests && !part.is_moved,
            };
            let layer = match (part.kind, is_guests) {
                (PartKind::Request, true) if own.is_some() => GuestLayer::Qemu,
                (PartKind::JournalCommit, true) => GuestLayer::GuestJournal,
                (_, true) => above.layer.min(GuestLayer::GuestJournal),
                (PartKind::Request, false) => GuestLayer::Device,
                (PartKind::Daemon, false) if above.is_in_daemon => GuestLayer::Daemon,
                (PartKind::Daemon, false) if children.iter().any(|child| child.is_moved) => {
                    GuestLayer::Network
                }
                (PartKind::Daemon, false) => GuestLayer::Nbd,
                (_, false) => GuestLayer::HostKernel,
            };
            if let Some(own) = own.filter(|_| layer == GuestLayer::Qemu) {
                tree.requests[0] += 1;
                tree.requests[1] += u64::from(own.is_served_by(&children));
                let issue = own.issue.unwrap_or(part.time.start);
                part.time.start = issue.clamp(part.time.start, part.time.end);
            }
            let is_in_daemon = above.is_in_daemon || part.kind == PartKind::Daemon && !is_guests;
            let place = PartPosition { depth: above.depth + 1, layer, is_guests, is_in_daemon };
            let names_machine = part.host.is_some() || part.is_moved;
            tree.parts.push(PlacedPart {
                part,
                depth: above.depth,
                layer,
                is_served: names_machine && !is_guests,
            });
            open.extend(children.into_iter().map(|child| (child, place)));
        }
        tree
    }

    /// Returns the number of the guest's requests to disks of QEMU, and of those with all their operations of QEMU.
    pub(crate) fn requests(&self) -> [u64; 2] {
        self.requests
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

impl OwnRequest {
    /// Returns whether these parts below it are all that it needs: its data, and each flush.
    fn is_served_by(&self, below: &[Part]) -> bool {
        let operations =
            |is_flush: bool| below.iter().filter(|part| part.is_moved && part.is_flush == is_flush).count();
        (!self.has_data || operations(false) > 0) && operations(true) >= self.flushes as usize
    }
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
mod tests {
    use super::*;

    const GUEST: &str = "a";

    /// Returns a part of the machine of its parent.
    fn part(id: u64, parent: u64, label: &str, time: Range<u64>) -> Part {
        let kind = match label.split(' ').next() {
            Some("request") => PartKind::Request,
            Some("journal") => PartKind::JournalCommit,
            Some("nbd") => PartKind::Daemon,
            _ => PartKind::Other,
        };
        let parent = (parent > 0).then_some(SpanId(parent));
        let is_flush = label.contains("sync") || label.ends_with("flush");
        Part {
            id: SpanId(id),
            parent,
            time,
            kind,
            is_flush,
            is_moved: false,
            host: None,
            label: label.into(),
        }
    }

    /// Returns the root of a trace that was moved below its client.
    fn moved(part: Part) -> Part {
        Part { is_moved: true, ..part }
    }

    fn on(host: &str, part: Part) -> Part {
        Part { host: Some(host.into()), ..part }
    }

    const WRITE: OwnRequest = OwnRequest { issue: None, flushes: 0, has_data: true };
    const FLUSH: OwnRequest = OwnRequest { issue: None, flushes: 1, has_data: false };

    /// A call from 0 to 100 with a request from 10 to 90. QEMU's call is from 30 to 80, the device's request from 40 to 60.
    fn linked() -> Vec<Part> {
        vec![
            part(5, 4, "request write", 40..60),
            part(2, 1, "bio write", 5..95),
            on(GUEST, part(1, 0, "pwrite64", 0..100)),
            part(3, 2, "request write", 10..90),
            moved(on("b", part(4, 3, "pwrite64", 30..80))),
        ]
    }

    fn tree_of(parts: &[Part], requests: &[(u64, OwnRequest)]) -> Tree {
        let requests = requests.iter().map(|(id, request)| (SpanId(*id), *request)).collect();
        let mut below: HashMap<SpanId, Vec<Part>> = HashMap::new();
        let mut root = None;
        for part in parts.iter().cloned() {
            match part.parent {
                None => root = Some(part),
                Some(parent) => below.entry(parent).or_default().push(part),
            }
        }
        Tree::of(root.unwrap(), &mut below, GUEST, &requests)
    }

    fn tree(parts: &[Part], requests: &[(u64, OwnRequest)]) -> Tree {
        let tree = tree_of(parts, requests);
        assert_eq!(tree.times().total(), DurationNs(100));
        tree
    }

    fn times(parts: &[Part], requests: &[(u64, OwnRequest)]) -> [u64; 8] {
        tree(parts, requests).times().0.map(|time| time.0)
    }

    #[test]
    fn each_moment_belongs_to_the_innermost_layer() {
        assert_eq!(times(&linked(), &[(3, WRITE)]), [20, 0, 30, 0, 0, 0, 30, 20]);
        assert_eq!(tree(&linked(), &[(3, WRITE)]).requests(), [1, 1]);
        // It waited in the guest's queue.
        let late = OwnRequest { issue: Some(25), ..WRITE };
        assert_eq!(times(&linked(), &[(3, late)]), [35, 0, 15, 0, 0, 0, 30, 20]);
    }

    #[test]
    fn what_lasts_longer_is_cut_and_what_overlaps_counts_once() {
        let mut parts = linked();
        parts.push(part(6, 2, "request flush", 50..130));
        parts.push(moved(on("b", part(7, 6, "fdatasync", 55..120))));
        assert_eq!(times(&parts, &[(3, WRITE), (6, FLUSH)]), [10, 0, 20, 0, 0, 0, 50, 20]);
    }

    #[test]
    fn a_journal_commit_and_an_nbd_server_are_layers_of_their_own() {
        let parts = vec![
            on(GUEST, part(1, 0, "fsync", 0..100)),
            part(2, 1, "journal commit", 10..90),
            part(3, 2, "bio write", 18..82),
            part(4, 3, "request write", 20..80),
            moved(on("b", part(5, 4, "nbd write", 30..70))),
            // Its tag is that of a daemon which claims to be the guest.
            moved(on("c", part(6, 5, "nbd write", 40..60))),
            on("c", part(7, 6, "pwrite64", 45..55)),
            part(8, 7, "request write", 48..50),
        ];
        assert_eq!(times(&parts, &[(4, WRITE)]), [20, 20, 20, 0, 20, 10, 8, 2]);
        // A server without spans.
        assert_eq!(times(&parts[..5], &[(4, WRITE)]), [20, 20, 20, 40, 0, 0, 0, 0]);
    }

    /// A submission of several has a trace of its own, whose root has no tag of its machine.
    #[test]
    fn a_moved_part_without_a_machine_is_not_the_guests() {
        let mut parts = linked();
        parts[4].host = None;
        assert_eq!(times(&parts, &[(3, WRITE)]), [20, 0, 30, 0, 0, 0, 30, 20]);
        assert_eq!(tree(&parts, &[(3, WRITE)]).requests(), [1, 1]);
    }

    #[test]
    fn a_request_needs_its_data_and_each_flush() {
        let request = |flushes, has_data| OwnRequest { issue: None, flushes, has_data };
        let linked_of = |parts: &[Part], own| tree(parts, &[(3, own)]).requests()[1];
        let mut parts = linked();
        assert_eq!(
            [request(0, true), request(1, true), request(1, false)].map(|own| linked_of(&parts, own)),
            [1, 0, 0]
        );
        parts.push(moved(on("b", part(6, 3, "fdatasync", 82..85))));
        assert_eq!([request(1, true), request(2, true)].map(|own| linked_of(&parts, own)), [1, 0]);
        parts.push(moved(on("b", part(7, 3, "nbd flush", 86..88))));
        assert_eq!(linked_of(&parts, request(2, true)), 1);
    }

    /// Requests of the guest's loop device, for example.
    #[test]
    fn a_request_to_another_disk_than_qemus_is_the_guests_kernel() {
        assert_eq!(times(&linked(), &[])[0], 50);
        assert_eq!(tree(&linked(), &[]).requests(), [0, 0]);
    }

    #[test]
    fn traces_of_hostile_guests_end() {
        // Parts that name each other as their parents are not below the root.
        let circle = [
            on(GUEST, part(1, 0, "read", 0..100)),
            part(2, 3, "a", 0..1),
            part(3, 2, "b", 0..1),
            part(1, 1, "c", 0..9),
        ];
        assert!(tree_of(&circle, &[]).parts.len() <= 2);
        let chain: Vec<Part> = (1..=100_000).map(|id| part(id, id - 1, "bio write", 0..100)).collect();
        assert_eq!(tree_of(&chain, &[]).parts.len(), 100_000);
    }
}
