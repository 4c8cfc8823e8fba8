//! Waiting flushes of a disk by time.
//!
//! *In*: flushes of the guest (clients) and of QEMU (servers), as they arrive and leave. *Out*: for one of them, those of
//! the other side that it may contain, or that may contain it: the caller checks each with what is known of the clocks.
//!
//! All flushes of a disk have one range. Without an order by time each would be compared with all that wait.
//!
//! *Invariant*: no two flushes are missing of which the clocks allow that one is inside the other. The guest's agent knows
//! the host's clock by pings, within bounds that each client carries. So a client has a window of the host's time, and a
//! server inside the client is inside the window. A server of another boot of the host is inside none.
//!
//! *Precondition*: each client carries such bounds, as [`disk_clients`](crate::trace::Trace::disk_clients) sees to.

use std::collections::BTreeSet;

use blkkin_wire::remote_link::LinkEndpoint;
use serde::{Deserialize, Serialize};

use super::clock_bounds::{Clock, clock_of, window};
use super::waiting::EndpointKey;

/// Longest window that is found by its begin, in ns. Longer ones are few, and are all looked at.
const LONG: u64 = 100_000_000;

/// Maximum number of those.
const LONG_MAX: usize = 1_024;

/// Places by the host's clock and a time of it.
type ByTime = BTreeSet<(Clock, u64, EndpointKey)>;

/// Waiting flushes of one disk.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FlushIndex {
    servers: ByTime,
    /// Clients with a window of up to [`LONG`], by its begin.
    clients: ByTime,
    /// The other clients.
    long: ByTime,
}

impl FlushIndex {
    pub(super) fn add_server(&mut self, place: EndpointKey, server: &LinkEndpoint) {
        self.servers.insert((clock_of(server), server.event.begin.0, place));
    }

    pub(super) fn remove_server(&mut self, place: EndpointKey, server: &LinkEndpoint) {
        self.servers.remove(&(clock_of(server), server.event.begin.0, place));
    }

    pub(super) fn add_client(&mut self, place: EndpointKey, client: &LinkEndpoint) {
        if let Some((clock, begin, end)) = window(client) {
            self.by_length(end.saturating_sub(begin)).insert((clock, begin, place));
        }
    }

    pub(super) fn remove_client(&mut self, place: EndpointKey, client: &LinkEndpoint) {
        if let Some((clock, begin, end)) = window(client) {
            self.by_length(end.saturating_sub(begin)).remove(&(clock, begin, place));
        }
    }

    /// Returns whether there are too many long clients to look at all of them.
    pub(super) fn is_crowded(&self) -> bool {
        self.long.len() > LONG_MAX
    }

    fn by_length(&mut self, length: u64) -> &mut ByTime {
        if length > LONG { &mut self.long } else { &mut self.clients }
    }

    /// Iterates over the servers that may be inside a client.
    pub(super) fn inside(&self, client: &LinkEndpoint) -> impl Iterator<Item = EndpointKey> {
        window(client).into_iter().flat_map(|(clock, begin, end)| between(&self.servers, clock, begin, end))
    }

    /// Iterates over the clients in which a server may be.
    pub(super) fn around(&self, server: &LinkEndpoint) -> impl Iterator<Item = EndpointKey> {
        let (clock, begin) = (clock_of(server), server.event.begin.0);
        let short = between(&self.clients, clock, begin.saturating_sub(LONG), begin);
        short.chain(between(&self.long, clock, 0, begin))
    }
}

/// Iterates over the places between two times of a clock, both included.
fn between(of: &ByTime, clock: Clock, first: u64, last: u64) -> impl Iterator<Item = EndpointKey> {
    let range = (clock, first, (0, 0))..=(clock, last.max(first), (u64::MAX, u64::MAX));
    of.range(range).map(|(_, _, place)| *place)
}
