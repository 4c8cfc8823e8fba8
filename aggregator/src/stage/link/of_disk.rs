//! Endpoints of one disk that wait for a decision.
//!
//! *In*: endpoints that arrive and leave. *Out*: those that another one may concern, and which of QEMU's operations have a
//! place in the guest's disk.
//!
//! *Invariant*: a server is either among the servers, by its range in the guest's disk, or among those without a place.

use std::collections::BTreeMap;

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::remote_link::RpcSide;
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

use super::clock_bounds::ClockBounds;
use super::clusters::Pair;
use super::flush_index::FlushIndex;
use super::ranges::{beginning_in, of_range, overlapping};
use super::rests::{begins_of_rests, is_rest};
use super::unplaced::Unplaced;
use super::waiting::{Candidate, EndpointKey, State, Waiting};

/// Endpoints of one disk, by cookie and number of arrival.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Disk {
    pub(super) clients: BTreeMap<EndpointKey, Waiting>,
    /// By their range in the guest's disk.
    pub(super) servers: BTreeMap<EndpointKey, Waiting>,
    /// Of a disk in an image with clusters: the rest of its servers, and what is known of the clusters.
    pub(super) unplaced: Option<Box<Unplaced>>,
    pub(super) flushes: FlushIndex,
}

impl Disk {
    pub(super) fn insert(&mut self, place: EndpointKey, mut endpoint: Waiting) {
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
        if !unplaced.set_image(place, &endpoint.endpoint, now) {
            return unplaced.add_without_place(place, endpoint);
        }
        match unplaced.guest_cookie(place, now) {
            Some(cookie) => {
                endpoint.had_place = true;
                self.servers.insert((cookie, place.1), endpoint);
            }
            None => unplaced.add(place, endpoint),
        }
    }

    /// Returns whether no endpoint waits.
    pub(super) fn is_empty(&self) -> bool {
        let without_place = self.unplaced.as_deref();
        self.clients.is_empty() && self.servers.is_empty() && without_place.is_none_or(Unplaced::is_empty)
    }

    /// Removes an endpoint by the cookie with which it arrived.
    pub(super) fn take(&mut self, place: EndpointKey, side: RpcSide) -> Option<Waiting> {
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

    pub(super) fn take_server(&mut self, place: EndpointKey) -> Option<Waiting> {
        self.unplaced.iter_mut().for_each(|unplaced| unplaced.forget_placed(place.1));
        let server = self.servers.remove(&place)?;
        if is_flush(place) {
            self.flushes.remove_server(place, &server.endpoint);
        }
        Some(server)
    }

    /// Returns where a server waits, by the cookie with which it arrived; none if its place in the guest's disk is not
    /// known.
    pub(super) fn place_of(&self, place: EndpointKey) -> Option<EndpointKey> {
        let placed = self.unplaced.as_ref().and_then(|unplaced| unplaced.placed(place));
        placed.or_else(|| self.servers.contains_key(&place).then_some(place))
    }

    /// Returns the waiting servers without a place that a client may concern.
    pub(super) fn unplaced_of(&self, client: EndpointKey) -> Vec<EndpointKey> {
        let (Some(unplaced), Some(waiting)) = (&self.unplaced, self.clients.get(&client)) else {
            return Vec::new();
        };
        unplaced.operations_for(client, waiting)
    }

    /// Forgets the places of clusters that the guest discards, also of servers that wait there.
    pub(super) fn forget_discarded(&mut self, range: DiskRequest, now: LogTime) {
        let Some(unplaced) = &mut self.unplaced else { return };
        unplaced.on_discard(range, now);
        let of = |operation| DiskRequest { operation, ..range };
        let waiting = [of(DiskOperation::Read), of(DiskOperation::Write)];
        let waiting: Vec<EndpointKey> = waiting
            .into_iter()
            .flat_map(|range| overlapping(&self.servers, range))
            .filter(|(_, server)| {
                let range = DiskRequest::from_cookie(server.endpoint.event.key.cookie);
                server.endpoint.image.is_some() && range.at_guests_offsets().is_none()
            })
            .map(|(place, _)| *place)
            .collect();
        for place in waiting {
            let Some(mut server) = self.servers.remove(&place) else { continue };
            server.had_place = false;
            unplaced.forget_placed(place.1);
            unplaced.add((server.endpoint.event.key.cookie, place.1), server);
        }
    }

    /// Returns a server without a place and its client, if there is no doubt.
    pub(super) fn pair_of(&self, place: EndpointKey, now: LogTime, clocks: &ClockBounds) -> Option<Pair> {
        let contains =
            |client: &Waiting, server: &Waiting| clocks.contains(&client.endpoint, &server.endpoint);
        let fits = |request: EndpointKey, client: &Waiting, server: &Waiting| {
            if client.state != State::Open || !contains(client, server) {
                return Some(false);
            }
            let mut placed = of_range(&self.servers, DiskRequest::from_cookie(request.0));
            let is_served = placed.any(|(_, placed)| contains(client, placed));
            (client.has_settled(now) && server.has_settled(now)).then_some(!is_served)
        };
        self.unplaced.as_ref()?.pair_of(place, |request| self.clients.get(&request), fits)
    }

    /// Learns from a server without a place and its client. Returns the servers that have a place now.
    pub(super) fn learn(&mut self, pair: &Pair, now: LogTime) -> Vec<EndpointKey> {
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
    pub(super) fn forget_place(&mut self, place: EndpointKey, side: RpcSide) {
        if side == RpcSide::Server
            && let Some(unplaced) = &mut self.unplaced
            && let Some(place) = unplaced.placed(place)
            && self.servers.get(&place).is_some_and(|server| server.state.is_open())
        {
            unplaced.map.forget_host(DiskRequest::from_cookie(place.0));
        }
    }

    pub(super) fn of(&mut self, side: RpcSide) -> &mut BTreeMap<EndpointKey, Waiting> {
        match side {
            RpcSide::Client => &mut self.clients,
            RpcSide::Server => &mut self.servers,
        }
    }

    /// Returns the waiting servers that a client's request may concern: those of its range, else those of its operation
    /// whose range overlaps; for a write also those on the rest of a cluster. All flushes have one range, so of those only what
    /// is inside it by the clocks.
    pub(super) fn servers_of(&self, place: EndpointKey, clocks: &ClockBounds) -> Vec<EndpointKey> {
        let client = DiskRequest::from_cookie(place.0);
        if client.operation == DiskOperation::Flush {
            let Some(waiting) = self.clients.get(&place) else { return Vec::new() };
            return self.flushes_inside(waiting, clocks).map(|(place, _)| *place).collect();
        }
        let same: Vec<EndpointKey> = of_range(&self.servers, client).map(|(place, _)| *place).collect();
        let mut servers = match same.is_empty() {
            true => overlapping(&self.servers, client).map(|(place, _)| *place).collect(),
            false => same,
        };
        servers.extend(self.rests_of(client).map(|(place, _)| *place));
        servers
    }

    /// Iterates over the operations on the rest of a cluster for a request.
    pub(super) fn rests_of(&self, client: DiskRequest) -> impl Iterator<Item = Candidate<'_>> {
        let is_write = client.operation == DiskOperation::Write && self.unplaced.is_some();
        let operations = if is_write { &[DiskOperation::Read, DiskOperation::Write][..] } else { &[] };
        let begins = operations.iter().flat_map(move |operation| {
            begins_of_rests(client).into_iter().map(move |begins| (*operation, begins))
        });
        let near = begins.flat_map(|(operation, begins)| beginning_in(&self.servers, operation, begins));
        near.filter(move |(place, server)| {
            may_be_on_a_rest(server) && is_rest(DiskRequest::from_cookie(place.0), client)
        })
    }

    /// Returns whether an operation on the rest of a request's cluster waits.
    pub(super) fn waits_for_rest(&self, client: EndpointKey, clocks: &ClockBounds) -> bool {
        let Some(waiting) = self.clients.get(&client).filter(|_| self.unplaced.is_some()) else {
            return false;
        };
        let mut rests = self.rests_of(DiskRequest::from_cookie(client.0));
        rests
            .any(|(_, server)| server.state.is_open() && clocks.contains(&waiting.endpoint, &server.endpoint))
    }
}

pub(super) fn is_flush(place: EndpointKey) -> bool {
    DiskRequest::from_cookie(place.0).operation == DiskOperation::Flush
}

/// Returns whether an operation may be on the rest of a cluster: a read of a backing file, or a write of a cluster that had no
/// place yet.
pub(super) fn may_be_on_a_rest(server: &Waiting) -> bool {
    let range = DiskRequest::from_cookie(server.endpoint.event.key.cookie);
    server.endpoint.image.is_some()
        && match range.operation {
            DiskOperation::Read => range.layer() > 0,
            DiskOperation::Write => !server.had_place,
            _ => false,
        }
}
