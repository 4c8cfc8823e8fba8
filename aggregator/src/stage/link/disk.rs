//! Links requests of guests to the operations of QEMU that serve them.
//!
//! *In*: endpoints whose keys are requests to a virtual machine's disk ([`DiskRequest`]): of the guest (client) and
//! of QEMU (server). A guest's write with flushes has an endpoint for each of them. *Out*: for each server endpoint,
//! its client and the rule, or that it has none.
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
//! | a flush | the only client that it can be of, or several that were issued at the same moment ([`flushes`]) |
//!
//! # When
//!
//! A decision waits until each of the endpoints that take part arrived [`SETTLE_MS`] ago, so that no other one is on
//! its way. Guest and host send their records once a second. If the endpoints leave a choice then, they wait as long
//! again, because other pairs may bound the clocks further meanwhile; only then they are refused. An endpoint that
//! arrives later finds no choice that was not there, unless one of the others was lost: a wrong link takes two lost
//! endpoints of two requests for the same range within the bound of the clocks.
//!
//! # Images with clusters
//!
//! In a qcow2 image a byte of the guest's disk may be anywhere. [`Unplaced`] learns from pairs without another candidate
//! where. Then the operation has the range of the guest's disk, and the rules above apply. It may also be a request's
//! range rounded to whole clusters, where QEMU fills up a new one. An operation of which the place stays unknown is linked
//! to nothing.
//!
//! *Rejected*: a decision at once, by the clocks alone ([`super`]). It requires a bound below the length of the server's
//! endpoint, and a write to the page cache takes 3 us.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::remote_link::{LinkEndpoint, RpcSide};
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

use super::clock_bounds::ClockBounds;
use super::clusters::{CLUSTER, ClusterMap, Pair};
use super::flush_index::FlushIndex;
use super::flushes::{self, Flushes};
use super::rests::{begins_of_rests, is_rest, may_be_rest};
use super::unplaced::Unplaced;
use super::waiting::{Candidate, Place, State, Waiting};

/// Time in ms of the log for which an endpoint waits for others that could take part. With a choice it waits twice.
const SETTLE_MS: u64 = 2_000;
/// Maximum length of a guest's request that QEMU splits, in sectors: 8 MiB. Linux' default maximum is 4 MiB.
const SPLIT_MAX: u64 = 16_384;
/// Sectors of the largest block to which QEMU rounds a request for direct I/O.
const BLOCK: u64 = 8;
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

/// Endpoints of one disk, by cookie and number of arrival.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Disk {
    clients: BTreeMap<Place, Waiting>,
    /// By their range in the guest's disk.
    servers: BTreeMap<Place, Waiting>,
    /// Of a disk in an image with clusters: the rest of its servers, and what is known of the clusters.
    unplaced: Option<Box<Unplaced>>,
    flushes: FlushIndex,
}

#[derive(Debug, Serialize, Deserialize)]
struct Arrival {
    at: LogTime,
    disk: Arc<str>,
    place: Place,
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

/// Reason of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Same,
    Merged(u64),
    Part,
    Rounded,
    Filled,
    Flush(u64),
}

impl Rule {
    /// Returns the text of the tag `blkkin.parent.evidence`.
    pub(super) fn text(self, in_clusters: bool) -> String {
        let inside = match in_clusters && !matches!(self, Rule::Flush(_)) {
            true => {
                "by the place of the image's cluster, which other requests have too, inside by both clocks"
            }
            false => "inside by both clocks",
        };
        let what: Cow<'static, str> = match self {
            Rule::Same => "disk, operation and range".into(),
            Rule::Merged(requests) => {
                format!("disk and operation, ranges of {requests} guest requests, the first is the parent")
                    .into()
            }
            Rule::Rounded => "disk and operation, range rounded to whole blocks".into(),
            Rule::Part => "disk and operation, part of the range".into(),
            Rule::Filled => "disk, rest of a cluster of which the request writes a part".into(),
            Rule::Flush(1) => "flush of the disk".into(),
            Rule::Flush(requests) => format!("flush of the disk for {requests} guest requests").into(),
        };
        ["rule: ", &what, ", ", inside].concat()
    }
}

/// Outcome of a look at one server.
enum Choice {
    /// No client yet, or not all of those that it needs.
    None,
    /// An endpoint that takes part has not settled.
    Later,
    Linked(Vec<Place>, Rule),
    /// Clients and servers that leave a choice.
    Ambiguous(Vec<Place>, Vec<Place>),
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
                disk.forget_place(&arrival);
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
    fn learn(&mut self, arrival: &Arrival, place: Place, now: LogTime, clocks: &ClockBounds) -> Vec<Place> {
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
        place: Place,
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
    fn look_again(&mut self, name: &str, place: Place, now: LogTime) {
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
        clients: &[Place],
        servers: &[Place],
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

impl Disk {
    fn insert(&mut self, place: Place, mut endpoint: Waiting) {
        let (range, now) = (DiskRequest::from_cookie(place.0), endpoint.at);
        if endpoint.endpoint.event.side == RpcSide::Client {
            self.unplaced.iter_mut().for_each(|unplaced| unplaced.add_request(place, &endpoint));
            if is_flush(place) {
                self.flushes.add_client(place, &endpoint.endpoint);
            }
            self.clients.insert(place, endpoint);
            if range.operation == DiskOperation::Discard {
                self.forget_discarded(range, now);
            }
            return;
        }
        // A flush is on the whole disk.
        if is_flush(place) {
            self.flushes.add_server(place, &endpoint.endpoint);
        }
        if endpoint.endpoint.image.is_none() || is_flush(place) {
            self.servers.insert(place, endpoint);
            return;
        }
        let unplaced = self.unplaced.get_or_insert_with(|| {
            let mut unplaced = Box::<Unplaced>::default();
            self.clients.iter().for_each(|(place, client)| unplaced.add_request(*place, client));
            unplaced
        });
        unplaced.set_image(place, &endpoint.endpoint);
        match unplaced.guest_cookie(place, now) {
            Some(cookie) => {
                endpoint.had_place = true;
                self.servers.insert((cookie, place.1), endpoint);
            }
            None => unplaced.add(place, endpoint),
        }
    }

    /// Returns whether no endpoint waits.
    fn is_empty(&self) -> bool {
        let without_place = self.unplaced.as_deref();
        self.clients.is_empty() && self.servers.is_empty() && without_place.is_none_or(Unplaced::is_empty)
    }

    /// Removes an endpoint by the cookie with which it arrived.
    fn take(&mut self, place: Place, side: RpcSide) -> Option<Waiting> {
        if side == RpcSide::Client {
            let client = self.clients.remove(&place)?;
            if is_flush(place) {
                self.flushes.remove_client(place, &client.endpoint);
            }
            self.unplaced.iter_mut().for_each(|unplaced| unplaced.remove_request(place, &client));
            return Some(client);
        }
        match self.place_of(place) {
            Some(place) => self.take_server(place),
            None => self.unplaced.as_mut()?.take(place),
        }
    }

    fn take_server(&mut self, place: Place) -> Option<Waiting> {
        self.unplaced.iter_mut().for_each(|unplaced| unplaced.forget_placed(place.1));
        let server = self.servers.remove(&place)?;
        if is_flush(place) {
            self.flushes.remove_server(place, &server.endpoint);
        }
        Some(server)
    }

    /// Returns where a server waits, by the cookie with which it arrived; none if its place in the guest's disk is not
    /// known.
    fn place_of(&self, place: Place) -> Option<Place> {
        let placed = self.unplaced.as_ref().and_then(|unplaced| unplaced.placed(place));
        placed.or_else(|| self.servers.contains_key(&place).then_some(place))
    }

    /// Returns the waiting servers without a place that a client may concern.
    fn unplaced_of(&self, client: Place) -> Vec<Place> {
        let (Some(unplaced), Some(waiting)) = (&self.unplaced, self.clients.get(&client)) else {
            return Vec::new();
        };
        unplaced.operations_for(client, waiting)
    }

    /// Forgets the places of clusters that the guest discards, also of servers that wait there.
    fn forget_discarded(&mut self, range: DiskRequest, now: LogTime) {
        let Some(unplaced) = &mut self.unplaced else { return };
        unplaced.on_discard(range, now);
        let of = |operation| DiskRequest { operation, ..range };
        let waiting = [of(DiskOperation::Read), of(DiskOperation::Write)];
        let waiting: Vec<Place> = waiting
            .into_iter()
            .flat_map(|range| overlapping(&self.servers, range))
            .filter(|(_, server)| {
                let range = DiskRequest::from_cookie(server.endpoint.event.key.cookie);
                server.endpoint.image.is_some() && range.at_guests_offsets().is_none()
            })
            .map(|(place, _)| *place)
            .collect();
        for place in waiting {
            let Some(server) = self.servers.remove(&place) else { continue };
            unplaced.forget_placed(place.1);
            unplaced.add((server.endpoint.event.key.cookie, place.1), server);
        }
    }

    /// Returns a server without a place and its client, if there is no doubt.
    fn pair_of(&self, place: Place, now: LogTime, clocks: &ClockBounds) -> Option<Pair> {
        let has_settled = |waiting: &Waiting| now.0.saturating_sub(waiting.at.0) > SETTLE_MS;
        let contains =
            |client: &Waiting, server: &Waiting| clocks.contains(&client.endpoint, &server.endpoint);
        let fits = |request: Place, client: &Waiting, server: &Waiting| {
            if client.state != State::Open || !contains(client, server) {
                return Some(false);
            }
            let mut placed = of_range(&self.servers, DiskRequest::from_cookie(request.0));
            let is_served = placed.any(|(_, placed)| contains(client, placed));
            (has_settled(client) && has_settled(server)).then_some(!is_served)
        };
        self.unplaced.as_ref()?.pair_of(place, |request| self.clients.get(&request), fits)
    }

    /// Learns from a server without a place and its client. Returns the servers that have a place now.
    fn learn(&mut self, pair: &Pair, now: LogTime) -> Vec<Place> {
        let Some(unplaced) = &mut self.unplaced else { return Vec::new() };
        let learned = unplaced.learn(pair);
        let mut placed = Vec::new();
        for place in unplaced.operations_on(&learned) {
            let Some(cookie) = unplaced.guest_cookie(place, now) else { continue };
            let Some(mut server) = unplaced.take(place) else { continue };
            if server.state == State::Doubtful {
                server.state = State::Open;
            }
            self.servers.insert((cookie, place.1), server);
            placed.push((cookie, place.1));
        }
        placed
    }

    /// Forgets the place of a server that waited for a client in vain.
    fn forget_place(&mut self, arrival: &Arrival) {
        if arrival.side == RpcSide::Server
            && let Some(unplaced) = &mut self.unplaced
            && let Some(place) = unplaced.placed(arrival.place)
            && self.servers.get(&place).is_some_and(|server| server.state.is_open())
        {
            unplaced.map.forget_host(DiskRequest::from_cookie(arrival.place.0));
        }
    }

    fn of(&mut self, side: RpcSide) -> &mut BTreeMap<Place, Waiting> {
        match side {
            RpcSide::Client => &mut self.clients,
            RpcSide::Server => &mut self.servers,
        }
    }

    /// Returns the waiting servers that a client's request may concern: those of its range, else those of its operation
    /// whose range overlaps; for a write also those on the rest of a cluster. All flushes have one range, so of those only what
    /// is inside it by the clocks.
    fn servers_of(&self, place: Place, clocks: &ClockBounds) -> Vec<Place> {
        let client = DiskRequest::from_cookie(place.0);
        if client.operation == DiskOperation::Flush {
            let Some(waiting) = self.clients.get(&place) else { return Vec::new() };
            return self.flushes_inside(waiting, clocks).map(|(place, _)| *place).collect();
        }
        let same: Vec<Place> = of_range(&self.servers, client).map(|(place, _)| *place).collect();
        let mut servers = match same.is_empty() {
            true => overlapping(&self.servers, client).map(|(place, _)| *place).collect(),
            false => same,
        };
        servers.extend(self.rests_of(client).map(|(place, _)| *place));
        servers
    }

    /// Iterates over the operations on the rest of a cluster for a request.
    fn rests_of(&self, client: DiskRequest) -> impl Iterator<Item = Candidate<'_>> {
        let is_write = client.operation == DiskOperation::Write && self.unplaced.is_some();
        let operations = if is_write { &[DiskOperation::Read, DiskOperation::Write][..] } else { &[] };
        let begins = operations.iter().flat_map(move |operation| {
            begins_of_rests(client).into_iter().map(move |begins| (*operation, begins))
        });
        let near = begins.flat_map(move |(operation, begins)| {
            let at = |start: u64| {
                DiskRequest { operation, start: start.min(DiskRequest::START_MAX), length: 0 }.cookie()
            };
            self.servers.range((at(*begins.start()), 0)..(at(begins.end() + 1), 0))
        });
        near.filter(move |(place, server)| {
            may_be_on_a_rest(server) && is_rest(DiskRequest::from_cookie(place.0), client)
        })
    }

    /// Returns whether an operation on the rest of a request's cluster waits.
    fn waits_for_rest(&self, client: Place, clocks: &ClockBounds) -> bool {
        let Some(waiting) = self.clients.get(&client).filter(|_| self.unplaced.is_some()) else {
            return false;
        };
        let mut rests = self.rests_of(DiskRequest::from_cookie(client.0));
        rests
            .any(|(_, server)| server.state.is_open() && clocks.contains(&waiting.endpoint, &server.endpoint))
    }

    /// Returns whether the last of these endpoints has waited for twice the time.
    fn has_waited_twice(&self, clients: &[Place], servers: &[Place], now: LogTime) -> bool {
        let clients = clients.iter().filter_map(|place| self.clients.get(place));
        let servers = servers.iter().filter_map(|place| self.servers.get(place));
        clients.chain(servers).all(|waiting| now.0.saturating_sub(waiting.at.0) > 2 * SETTLE_MS)
    }

    /// Returns what is to be done about a server.
    fn choice(&self, place: Place, now: LogTime, clocks: &ClockBounds) -> Choice {
        let Some(server) = self.servers.get(&place) else { return Choice::None };
        let has_settled = |waiting: &Waiting| now.0.saturating_sub(waiting.at.0) > SETTLE_MS;
        if !has_settled(server) {
            return Choice::Later;
        }
        let contains = |client: &Waiting| clocks.contains(&client.endpoint, &server.endpoint);
        let request = DiskRequest::from_cookie(place.0);
        let is_flush = request.operation == DiskOperation::Flush;
        let same: Vec<_> = match is_flush {
            true => self.flushes_around(server, clocks).collect(),
            false => of_range(&self.clients, request).filter(|(_, client)| contains(client)).collect(),
        };
        // An operation on whole clusters may be a part of a longer request too.
        let all = !is_flush && (same.is_empty() || server.endpoint.image.is_some());
        let candidates: Vec<_> = match all {
            true => overlapping(&self.clients, request).filter(|(_, client)| contains(client)).collect(),
            false => same,
        };
        let writes: Vec<_> = match may_be_on_a_rest(server) {
            true => writes_near(&self.clients, request).filter(|(_, client)| contains(client)).collect(),
            false => Vec::new(),
        };
        if !candidates.iter().chain(&writes).all(|(_, client)| has_settled(client)) {
            return Choice::Later;
        }
        if all && server.endpoint.image.is_some() {
            let choice = self.on_clusters(place, &candidates, clocks);
            return self.or_rest(place, choice, &candidates, &writes, clocks);
        }
        match candidates.first() {
            None => Choice::None,
            Some(_) if is_flush => self.flush(place, &candidates, now, clocks),
            Some((first, _)) if first.0 == place.0 => self.same_range(place, &candidates, clocks),
            Some(_) => other_range(place, &candidates),
        }
    }

    /// Decides about a server that may be on the rest of a cluster for one of these writes.
    fn or_rest(
        &self,
        place: Place,
        choice: Choice,
        candidates: &[Candidate<'_>],
        writes: &[Candidate<'_>],
        clocks: &ClockBounds,
    ) -> Choice {
        let request = DiskRequest::from_cookie(place.0);
        let of_rest = |(write, _): &&Candidate<'_>| is_rest(request, DiskRequest::from_cookie(write.0));
        let mut certain = writes.iter().filter(of_rest);
        match (writes, certain.next(), choice) {
            ([], _, choice) => choice,
            // Each request that needs an operation has one of its own range.
            (_, None, choice @ (Choice::Linked(_, Rule::Same) | Choice::None)) => choice,
            ([(write, client)], Some(_), Choice::None)
                if client.state != State::Refused
                    && candidates.is_empty()
                    && !self.is_discarded(place, request, clocks) =>
            {
                Choice::Linked(vec![**write], Rule::Filled)
            }
            _ => Choice::Ambiguous(Vec::new(), vec![place]),
        }
    }

    /// Returns whether the guest discards a part of a server's range meanwhile: QEMU may write zeroes there.
    fn is_discarded(&self, place: Place, range: DiskRequest, clocks: &ClockBounds) -> bool {
        let discard = DiskRequest { operation: DiskOperation::Discard, ..range };
        self.servers.get(&place).is_some_and(|server| {
            let mut discards = overlapping(&self.clients, discard);
            discards.any(|(_, client)| clocks.contains(&client.endpoint, &server.endpoint))
        })
    }

    /// Decides about a server in an image with clusters. It may be on a part of a longer request, and on more than a
    /// request where QEMU fills up new clusters.
    fn on_clusters(&self, place: Place, candidates: &[Candidate<'_>], clocks: &ClockBounds) -> Choice {
        let (request, range) =
            (DiskRequest::from_cookie(place.0), |one: &Candidate<'_>| DiskRequest::from_cookie(one.0.0));
        let covers = |one: &Candidate<'_>| match request.operation {
            DiskOperation::Write => is_within(request, filled_up(range(one), request)),
            _ => is_within(request, range(one)),
        };
        let (covering, others): (Vec<Candidate<'_>>, Vec<_>) = candidates.iter().copied().partition(covers);
        let is_part = |one: &Candidate<'_>| is_within(range(one), request);
        match covering.as_slice() {
            [] => other_range(place, candidates),
            [one] if !others.iter().any(is_part) => {
                let rule = match is_part(one) {
                    true if range(one) == request => return self.same_range(place, &covering, clocks),
                    true => Rule::Rounded,
                    false => Rule::Part,
                };
                let is_free = match rule {
                    Rule::Rounded => one.1.state == State::Open,
                    _ => one.1.state != State::Refused,
                };
                if is_free { Choice::Linked(vec![*one.0], rule) } else { Choice::None }
            }
            _ => Choice::Ambiguous(Vec::new(), vec![place]),
        }
    }

    /// Iterates over QEMU's flushes that may be inside a client's time.
    fn flushes_inside<'a>(
        &'a self,
        client: &'a Waiting,
        clocks: &'a ClockBounds,
    ) -> impl Iterator<Item = Candidate<'a>> {
        let servers = self.flushes.inside(&client.endpoint);
        let servers = servers.filter_map(|place| self.servers.get_key_value(&place));
        servers.filter(|(_, server)| clocks.contains(&client.endpoint, &server.endpoint))
    }

    /// Iterates over the guest's flushes in whose time one of QEMU's may be.
    fn flushes_around<'a>(
        &'a self,
        server: &'a Waiting,
        clocks: &'a ClockBounds,
    ) -> impl Iterator<Item = Candidate<'a>> {
        let clients = self.flushes.around(&server.endpoint);
        let clients = clients.filter_map(|place| self.clients.get_key_value(&place));
        clients.filter(|(_, client)| clocks.contains(&client.endpoint, &server.endpoint))
    }

    /// Decides between flushes of the guest that contain one of QEMU.
    fn flush(
        &self,
        place: Place,
        candidates: &[Candidate<'_>],
        now: LogTime,
        clocks: &ClockBounds,
    ) -> Choice {
        let in_clusters = self.servers.get(&place).is_some_and(|server| server.endpoint.image.is_some());
        let of_disk = FlushesByClock { disk: self, now, clocks };
        match flushes::claimants(place, candidates, in_clusters, &of_disk) {
            Some(clients) => {
                let count = clients.len() as u64;
                Choice::Linked(clients, Rule::Flush(count))
            }
            None => Choice::Ambiguous(Vec::new(), vec![place]),
        }
    }

    /// Decides between clients of the server's own range.
    fn same_range(&self, place: Place, candidates: &[Candidate<'_>], clocks: &ClockBounds) -> Choice {
        let [(client, waiting)] = candidates else {
            return Choice::Ambiguous(places(candidates), vec![place]);
        };
        // The client must have no other choice either.
        let others = of_range(&self.servers, DiskRequest::from_cookie(place.0));
        let others = others.filter(|(_, server)| clocks.contains(&waiting.endpoint, &server.endpoint));
        let servers: Vec<Place> = others.map(|(other, _)| *other).collect();
        match (servers.as_slice(), waiting.state) {
            ([_], State::Open) => Choice::Linked(vec![**client], Rule::Same),
            _ => Choice::Ambiguous(vec![**client], servers),
        }
    }
}

/// Flushes of a disk, by what is known of the clocks now.
struct FlushesByClock<'d> {
    disk: &'d Disk,
    now: LogTime,
    clocks: &'d ClockBounds,
}

impl Flushes for FlushesByClock<'_> {
    fn inside<'a>(&'a self, request: &Candidate<'a>, max: usize) -> Vec<Candidate<'a>> {
        self.disk.flushes_inside(request.1, self.clocks).take(max).collect()
    }

    fn around<'a>(&'a self, flush: &Candidate<'a>) -> Option<Vec<Candidate<'a>>> {
        let has_settled = self.now.0.saturating_sub(flush.1.at.0) > SETTLE_MS;
        has_settled.then(|| self.disk.flushes_around(flush.1, self.clocks).collect())
    }
}

fn is_flush(place: Place) -> bool {
    DiskRequest::from_cookie(place.0).operation == DiskOperation::Flush
}

fn places(candidates: &[Candidate<'_>]) -> Vec<Place> {
    candidates.iter().map(|(place, _)| **place).collect()
}

/// Decides between clients of other ranges than the server's.
fn other_range(place: Place, candidates: &[Candidate<'_>]) -> Choice {
    let (request, range) =
        (DiskRequest::from_cookie(place.0), |one: &Candidate<'_>| DiskRequest::from_cookie(one.0.0));
    let is_part = |one: &&Candidate<'_>| is_within(range(one), request);
    let parts: Vec<_> = candidates.iter().filter(is_part).copied().collect();
    let are_open = !parts.is_empty() && parts.iter().all(|(_, client)| client.state == State::Open);
    if are_open && is_tiled(request, parts.iter().map(range)) {
        return Choice::Linked(places(&parts), Rule::Merged(parts.len() as u64));
    }
    if are_open
        && let [one] = parts.as_slice()
        && is_rounded(range(one), request)
    {
        return Choice::Linked(places(&parts), Rule::Rounded);
    }
    let contains = |one: &&Candidate<'_>| is_within(request, range(one));
    let whole: Vec<_> = candidates.iter().filter(contains).copied().collect();
    match whole.as_slice() {
        [(_, one)] if one.state != State::Refused => Choice::Linked(places(&whole), Rule::Part),
        [] => Choice::None,
        _ => Choice::Ambiguous(Vec::new(), vec![place]),
    }
}

/// Returns whether an operation is on a backing file.
fn is_of_backing_file(server: &Waiting) -> bool {
    let range = DiskRequest::from_cookie(server.endpoint.event.key.cookie);
    server.endpoint.image.is_some() && range.layer() > 0
}

/// Returns whether an operation may be on the rest of a cluster: a read of a backing file, or a write of a cluster that had no
/// place yet.
fn may_be_on_a_rest(server: &Waiting) -> bool {
    match DiskRequest::from_cookie(server.endpoint.event.key.cookie).operation {
        DiskOperation::Read => is_of_backing_file(server),
        DiskOperation::Write => server.endpoint.image.is_some() && !server.had_place,
        _ => false,
    }
}

/// Iterates over the guest's writes of which an operation may be on the rest of a cluster.
fn writes_near(of: &BTreeMap<Place, Waiting>, rest: DiskRequest) -> impl Iterator<Item = Candidate<'_>> {
    let start = rest.start.saturating_sub(BLOCK);
    let length = (rest.end() + BLOCK - start) as u32;
    let writes = overlapping(of, DiskRequest { operation: DiskOperation::Write, start, length });
    writes.filter(move |(place, _)| may_be_rest(rest, DiskRequest::from_cookie(place.0)))
}

/// Iterates over the endpoints of this operation and range.
fn of_range(of: &BTreeMap<Place, Waiting>, request: DiskRequest) -> impl Iterator<Item = Candidate<'_>> {
    of.range((request.cookie(), 0)..=(request.cookie(), u64::MAX))
}

/// Iterates over the endpoints of this operation whose range overlaps, by first sector.
fn overlapping(of: &BTreeMap<Place, Waiting>, request: DiskRequest) -> impl Iterator<Item = Candidate<'_>> {
    let first = DiskRequest { start: request.start.saturating_sub(SPLIT_MAX), length: 0, ..request };
    let last = DiskRequest { start: request.end().min(DiskRequest::START_MAX), length: 0, ..request };
    let overlaps = move |place: &Place| DiskRequest::from_cookie(place.0).end() > request.start;
    of.range((first.cookie(), 0)..(last.cookie(), 0)).filter(move |(place, _)| overlaps(place))
}

fn is_within(inner: DiskRequest, outer: DiskRequest) -> bool {
    inner.start >= outer.start && inner.end() <= outer.end()
}

/// Returns whether a range is another one rounded to whole blocks.
fn is_rounded(part: DiskRequest, whole: DiskRequest) -> bool {
    (whole.start, whole.end()) == (part.start / BLOCK * BLOCK, part.end().next_multiple_of(BLOCK))
}

/// Returns what QEMU writes for a range where its clusters are new, if an operation has the begin or end of a cluster.
fn filled_up(range: DiskRequest, operation: DiskRequest) -> DiskRequest {
    let start = match operation.start.is_multiple_of(CLUSTER) {
        true => range.start / CLUSTER * CLUSTER,
        false => range.start,
    };
    let end = match operation.end().is_multiple_of(CLUSTER) {
        true => range.end().next_multiple_of(CLUSTER),
        false => range.end(),
    };
    DiskRequest { start, length: (end - start) as u32, ..range }
}

/// Returns whether ranges, by first sector, are the whole without overlap.
fn is_tiled(whole: DiskRequest, parts: impl Iterator<Item = DiskRequest>) -> bool {
    let mut next = whole.start;
    for part in parts {
        if part.start != next {
            return false;
        }
        next = part.end();
    }
    next == whole.end()
}
