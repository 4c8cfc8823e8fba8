//! Links requests of guests to the operations of QEMU that serve them.
//!
//! *In*: endpoints whose keys are requests to a virtual machine's disk
//! ([`DiskRequest`](blkkin_wire::disk_request::DiskRequest)): of the guest (client) and of QEMU (server). A guest's
//! write with flushes has an endpoint for each of them. *Out*: for each server endpoint, its client and the rule, or that
//! it has none. This module has the order of decisions; `of_disk.rs` has the endpoints of a disk, and `choice.rs` decides
//! about one server.
//!
//! *Invariant*: a server endpoint is linked only to a client of the same disk and operation whose range and time
//! contain its own. If the endpoints leave a choice, none of them is linked.
//!
//! A key repeats, because a guest writes a block again. The clocks distinguish the two: the host's agent bounds their
//! difference by a ping ([`PeerClock`](blkkin_wire::remote_link::PeerClock)), and linked pairs that agree bound it
//! further ([`ClockBounds`]). So the bound is soon as small as the shortest way between guest and QEMU, which is less
//! than what is between two requests for one block.
//!
//! | QEMU did | rule |
//! |---|---|
//! | the same operation on the same range | one server and one client contain no other choice |
//! | one operation for several requests (it merges neighbours) | the clients' ranges together are the server's range, without overlap; the first is the parent |
//! | several operations for one request | one client's range contains the server's |
//! | an operation on whole blocks of the image's device, for a request of a part | one client's range, rounded to blocks of 4,096 bytes, is the server's |
//! | an operation on the rest of a new cluster of which a request writes a part: a read of the backing file, or a write | the only request that it can be for |
//! | a flush | the only client that it can be of, or several that were issued at the same moment (`flushes.rs`) |
//!
//! # When
//!
//! A decision waits until each of the endpoints that take part arrived [`SETTLE_MS`] ago, so that no other one is on
//! its way. Guest and host send their records once a second. If the endpoints leave a choice then, they wait as long
//! again, because other pairs may bound the clocks further meanwhile; only then they are refused. An endpoint that
//! arrives later finds no choice that was not there, unless one of the others was lost: a wrong link takes two lost
//! endpoints of two requests for the same range within the bound of the clocks. On the rest of a cluster (`rests.rs`) it takes
//! one: of a neighbour's request.
//!
//! # Images with clusters
//!
//! In a qcow2 image a byte of the guest's disk may be anywhere. `unplaced.rs` learns from pairs without another
//! candidate where. Then the operation has the range of the guest's disk, and the rules above apply. It may also be a request's
//! range rounded to whole clusters, where QEMU fills up a new one. An operation of which the place stays unknown is linked
//! to nothing.
//!
//! *Rejected*: a decision at once, by the clocks alone ([`super`]). It requires a bound below the length of the server's
//! endpoint, and a write to the page cache takes 3 us.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use blkkin_wire::remote_link::{LinkEndpoint, RpcSide};
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

use super::choice::Choice;
use super::clock_bounds::ClockBounds;
use super::clusters::ClusterMap;
use super::of_disk::Disk;
use super::rule::Rule;
use super::waiting::{EndpointKey, SETTLE_MS, State, Waiting};

/// Maximum number of places of clusters of all disks, some 100 bytes each.
const PLACES_MAX: usize = 262_144;

/// Waiting endpoints by disk.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DiskRequests {
    disks: BTreeMap<Arc<str>, Disk>,
    /// Endpoints in the order of arrival, to be considered when they have settled, and to be given up.
    settling: VecDeque<Arrival>,
    expiring: VecDeque<Arrival>,
    count: u64,
    pending: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Arrival {
    at: LogTime,
    disk: Arc<str>,
    place: EndpointKey,
    side: RpcSide,
}

/// Decision about endpoints, which do not wait any more.
#[derive(Debug)]
pub(super) enum Decision {
    /// A server with its client. `clients` is the number of clients that it serves.
    Linked { server: Box<LinkEndpoint>, client: Box<LinkEndpoint>, rule: Rule, clients: u64 },
    /// An endpoint that had several candidates.
    Refused(Box<LinkEndpoint>),
    /// A server without a client, or a client without a server.
    Unmatched { endpoint: Box<LinkEndpoint>, was_evicted: bool },
    /// An endpoint about which a decision was made before.
    Ended,
}

impl DiskRequests {
    /// Returns the number of endpoints without a decision.
    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    /// Adds an endpoint that arrived now.
    pub(super) fn add(&mut self, now: LogTime, endpoint: LinkEndpoint) {
        let (side, name) = (endpoint.event.side, &*endpoint.event.key.connection);
        let disk = self.disks.get_key_value(name).map_or_else(|| name.into(), |(disk, _)| Arc::clone(disk));
        let place = (endpoint.event.key.cookie, self.count);
        self.count += 1;
        self.pending += 1;
        for queue in [&mut self.settling, &mut self.expiring] {
            queue.push_back(Arrival { at: now, disk: Arc::clone(&disk), place, side });
        }
        let of_disk = self.disks.entry(disk).or_default();
        of_disk.insert(
            place,
            Waiting { at: now, endpoint: endpoint.into(), state: State::Open, had_place: false },
        );
    }

    /// Decides about endpoints that have settled, and gives up those that waited for `wait_for` ms or, oldest first,
    /// that are more than `max`.
    pub(super) fn advance(
        &mut self,
        now: LogTime,
        wait_for: u64,
        max: u64,
        clocks: &mut ClockBounds,
        decide: &mut dyn FnMut(&mut ClockBounds, Decision),
    ) {
        let has_waited = |arrival: &Arrival, ms: u64| now.0.saturating_sub(arrival.at.0) > ms;
        while let Some(arrival) = self.settling.pop_front_if(|arrival| has_waited(arrival, SETTLE_MS)) {
            self.settle(&arrival, now, clocks, decide);
        }
        while let Some(arrival) =
            self.expiring.pop_front_if(|arrival| has_waited(arrival, wait_for) || self.pending > max)
        {
            let was_evicted = !has_waited(&arrival, wait_for);
            let Some(disk) = self.disks.get_mut(&arrival.disk) else { continue };
            if !was_evicted {
                disk.forget_place(arrival.place, arrival.side);
            }
            let Some(waiting) = disk.take(arrival.place, arrival.side) else { continue };
            self.pending -= u64::from(waiting.state.is_open());
            decide(
                clocks,
                match waiting.state {
                    State::Open | State::Doubtful => {
                        Decision::Unmatched { endpoint: waiting.endpoint, was_evicted }
                    }
                    State::Linked | State::Refused => Decision::Ended,
                },
            );
        }
        if self.disks.len() > 1_024 {
            self.disks.retain(|_, disk| !disk.is_empty());
        }
    }

    /// Decides about a server that has settled, or about those that a client which has settled may concern.
    fn settle(
        &mut self,
        arrival: &Arrival,
        now: LogTime,
        clocks: &mut ClockBounds,
        decide: &mut dyn FnMut(&mut ClockBounds, Decision),
    ) {
        let Some(disk) = self.disks.get_mut(&arrival.disk) else { return };
        let (servers, unplaced) = match arrival.side {
            RpcSide::Server => {
                let place = disk.place_of(arrival.place);
                if let Some(server) = place.and_then(|place| disk.servers.get_mut(&place))
                    && server.state == State::Doubtful
                    && arrival.at > server.at
                {
                    server.state = State::Open;
                }
                (Vec::from_iter(place), if place.is_some() { Vec::new() } else { vec![arrival.place] })
            }
            RpcSide::Client => (disk.servers_of(arrival.place, clocks), disk.unplaced_of(arrival.place)),
        };
        for place in servers {
            self.look_at(&arrival.disk, place, now, clocks, decide);
        }
        for place in unplaced {
            for placed in self.learn(arrival, place, now, clocks) {
                self.look_at(&arrival.disk, placed, now, clocks, decide);
            }
        }
    }

    /// Looks for the request of a server without a place. Returns the servers that have a place now.
    fn learn(
        &mut self,
        arrival: &Arrival,
        place: EndpointKey,
        now: LogTime,
        clocks: &ClockBounds,
    ) -> Vec<EndpointKey> {
        let Some(disk) = self.disks.get_mut(&arrival.disk) else { return Vec::new() };
        if let Some(pair) = disk.pair_of(place, now, clocks) {
            let placed = disk.learn(&pair, now);
            self.limit_places();
            return placed;
        }
        let server = disk.unplaced.as_mut().and_then(|unplaced| unplaced.get_mut(place));
        if let Some(server) = server.filter(|server| server.state == State::Open) {
            // Meanwhile others may show which one it is.
            server.state = State::Doubtful;
            let (disk, side) = (Arc::clone(&arrival.disk), RpcSide::Server);
            self.settling.push_back(Arrival { at: now, disk, place, side });
        }
        Vec::new()
    }

    /// Forgets places beyond the maximum: all of the disk that was used last the longest ago, or some of the only disk.
    fn limit_places(&mut self) {
        let with_places = || self.disks.values().filter_map(|disk| disk.unplaced.as_ref());
        let mut places: usize = with_places().map(|unplaced| unplaced.map.len()).sum();
        while places > PLACES_MAX {
            let disks = self.disks.values_mut().filter_map(|disk| disk.unplaced.as_mut());
            let mut disks: Vec<_> = disks.filter(|unplaced| unplaced.map.len() > 0).collect();
            let Some(oldest) = disks.iter().map(|unplaced| unplaced.used).min() else { return };
            let are_many = disks.len() > 1;
            let Some(unplaced) = disks.iter_mut().find(|unplaced| unplaced.used == oldest) else { return };
            let before = unplaced.map.len();
            match are_many {
                true => unplaced.map = ClusterMap::default(),
                false => unplaced.map.evict(),
            }
            places -= before - unplaced.map.len();
        }
    }

    fn look_at(
        &mut self,
        name: &str,
        place: EndpointKey,
        now: LogTime,
        clocks: &mut ClockBounds,
        decide: &mut dyn FnMut(&mut ClockBounds, Decision),
    ) {
        let Some(disk) = self.disks.get_mut(name) else { return };
        if disk.servers.get(&place).is_none_or(|server| !server.state.is_open()) {
            return;
        }
        let (clients, rule) = match disk.choice(place, now, clocks) {
            Choice::None | Choice::Later => return,
            Choice::Linked(clients, rule) => (clients, rule),
            Choice::Ambiguous(clients, servers) => {
                return match disk.has_waited_twice(&clients, &servers, now) {
                    true => self.refuse(name, &clients, &servers, clocks, decide),
                    false => self.look_again(name, place, now),
                };
            }
        };
        let Some(server) = disk.take_server(place) else { return };
        self.pending -= u64::from(server.state.is_open());
        let mut parent: Option<Box<LinkEndpoint>> = None;
        let mut new = 0;
        for place in clients {
            let Some(client) = disk.clients.get_mut(&place) else { continue };
            // The rest of its cluster is not all that it needs.
            let is_new = client.state == State::Open && rule != Rule::Filled;
            if is_new {
                client.state = State::Linked;
            }
            new += u64::from(is_new);
            self.pending -= u64::from(is_new);
            let begin = |endpoint: &LinkEndpoint| (endpoint.event.begin, endpoint.event.span);
            let is_first = parent.as_ref().is_none_or(|parent| begin(&client.endpoint) < begin(parent));
            // A request that another operation can still be for, waits on.
            let flush_of_one = matches!(rule, Rule::Flush(_)) && server.endpoint.image.is_none();
            let has_all = matches!(rule, Rule::Same | Rule::Merged(_)) || flush_of_one;
            let endpoint = match has_all && !disk.waits_for_rest(place, clocks) {
                true => disk.take(place, RpcSide::Client).map(|client| client.endpoint),
                false => disk.clients.get(&place).filter(|_| is_first).map(|client| client.endpoint.clone()),
            };
            if is_first {
                parent = endpoint;
            }
        }
        if let Some(client) = parent {
            decide(clocks, Decision::Linked { server: server.endpoint, client, rule, clients: new });
        }
    }

    /// Has a server with a choice looked at once more.
    fn look_again(&mut self, name: &str, place: EndpointKey, now: LogTime) {
        let server = self.disks.get_mut(name).and_then(|disk| disk.servers.get_mut(&place));
        if let Some(server) = server.filter(|server| server.state == State::Open) {
            server.state = State::Doubtful;
            self.settling.push_back(Arrival { at: now, disk: name.into(), place, side: RpcSide::Server });
        }
    }

    /// Refuses the endpoints that leave a choice. They stay until they expire, since each is a choice of others.
    fn refuse(
        &mut self,
        name: &str,
        clients: &[EndpointKey],
        servers: &[EndpointKey],
        clocks: &mut ClockBounds,
        decide: &mut dyn FnMut(&mut ClockBounds, Decision),
    ) {
        let Some(disk) = self.disks.get_mut(name) else { return };
        for (side, places) in [(RpcSide::Client, clients), (RpcSide::Server, servers)] {
            for place in places {
                let Some(waiting) = disk.of(side).get_mut(place) else { continue };
                if waiting.state.is_open() {
                    waiting.state = State::Refused;
                    self.pending -= 1;
                    decide(clocks, Decision::Refused(waiting.endpoint.clone()));
                }
            }
        }
    }
}
