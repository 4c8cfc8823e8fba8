//! Decides about one operation of QEMU: which of the guest's requests it serves, by the rules of `disk.rs`.

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::ids::SpanId;
use blkkin_wire::stage::LogTime;

use super::clock_bounds::ClockBounds;
use super::flushes::{self, Flushes};
use super::of_disk::{Disk, may_be_on_a_rest};
use super::ranges::{
    beginning_in, filled_up, is_rounded, is_tiled, is_within, of_range, overlapping, writes_near,
};
use super::rests::is_rest;
use super::rule::Rule;
use super::waiting::{Candidate, EndpointKey, State, Waiting};

/// Outcome of a look at one server.
pub(super) enum Choice {
    /// No client yet, or not all of those that it needs.
    None,
    /// An endpoint that takes part has not settled.
    Later,
    Linked(Vec<EndpointKey>, Rule),
    /// Clients and servers that leave a choice.
    Ambiguous(Vec<EndpointKey>, Vec<EndpointKey>),
}

impl Disk {
    /// Returns whether the last of these endpoints has waited for twice the time.
    pub(super) fn has_waited_twice(
        &self,
        clients: &[EndpointKey],
        servers: &[EndpointKey],
        now: LogTime,
    ) -> bool {
        let clients = clients.iter().filter_map(|place| self.clients.get(place));
        let servers = servers.iter().filter_map(|place| self.servers.get(place));
        clients.chain(servers).all(|waiting| waiting.has_waited_twice(now))
    }

    /// Returns what is to be done about a server.
    pub(super) fn choice(&self, place: EndpointKey, now: LogTime, clocks: &ClockBounds) -> Choice {
        let Some(server) = self.servers.get(&place) else { return Choice::None };
        if !server.has_settled(now) {
            return Choice::Later;
        }
        let contains = |client: &Waiting| clocks.contains(&client.endpoint, &server.endpoint);
        let request = DiskRequest::from_cookie(place.0);
        let is_flush = request.operation == DiskOperation::Flush;
        if is_flush && self.flushes.is_crowded() {
            return Choice::Ambiguous(Vec::new(), vec![place]);
        }
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
        if !candidates.iter().chain(&writes).all(|(_, client)| client.has_settled(now)) {
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
        place: EndpointKey,
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
            (_, None, Choice::None) => Choice::None,
            // Each write has an operation of its own in this image.
            (_, None, choice @ Choice::Linked(_, Rule::Same))
                if request.operation == DiskOperation::Write =>
            {
                choice
            }
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
    fn is_discarded(&self, place: EndpointKey, range: DiskRequest, clocks: &ClockBounds) -> bool {
        self.servers.get(&place).is_some_and(|server| {
            // A discard may be longer than any other request.
            let mut discards = beginning_in(&self.clients, DiskOperation::Discard, 0..range.end());
            discards.any(|(discard, client)| {
                DiskRequest::from_cookie(discard.0).end() > range.start
                    && clocks.contains(&client.endpoint, &server.endpoint)
            })
        })
    }

    /// Decides about a server in an image with clusters. It may be on a part of a longer request, and on more than a
    /// request where QEMU fills up new clusters.
    fn on_clusters(&self, place: EndpointKey, candidates: &[Candidate<'_>], clocks: &ClockBounds) -> Choice {
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
    pub(super) fn flushes_inside<'a>(
        &'a self,
        client: &'a Waiting,
        clocks: &'a ClockBounds,
    ) -> impl Iterator<Item = Candidate<'a>> {
        let servers = self.flushes.inside(&client.endpoint);
        let servers = servers.filter_map(|place| self.servers.get_key_value(&place));
        servers.filter(|(_, server)| clocks.contains(&client.endpoint, &server.endpoint))
    }

    /// Iterates over the guest's flushes that one of QEMU's may be inside of.
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
        place: EndpointKey,
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
    fn same_range(&self, place: EndpointKey, candidates: &[Candidate<'_>], clocks: &ClockBounds) -> Choice {
        let [(client, waiting)] = candidates else {
            return Choice::Ambiguous(places(candidates), vec![place]);
        };
        // The client must have no other choice either.
        let others = of_range(&self.servers, DiskRequest::from_cookie(place.0));
        let others = others.filter(|(_, server)| clocks.contains(&waiting.endpoint, &server.endpoint));
        let servers: Vec<EndpointKey> = others.map(|(other, _)| *other).collect();
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

    fn can_only_be_of(&self, flush: &Candidate<'_>, request: SpanId) -> bool {
        let mut around = self.disk.flushes_around(flush.1, self.clocks);
        flush.1.has_settled(self.now) && around.all(|(_, client)| client.endpoint.event.span == request)
    }
}

fn places(candidates: &[Candidate<'_>]) -> Vec<EndpointKey> {
    candidates.iter().map(|(place, _)| **place).collect()
}

/// Decides between clients of other ranges than the server's.
fn other_range(place: EndpointKey, candidates: &[Candidate<'_>]) -> Choice {
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
