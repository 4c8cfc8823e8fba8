//! Endpoints that wait for a decision about a disk (`disk.rs`).

use blkkin_wire::remote_link::LinkEndpoint;
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

/// Time in ms of the log for which an endpoint waits for others that could take part. With a choice it waits twice.
pub(super) const SETTLE_MS: u64 = 2_000;

/// Cookie and number of arrival.
pub(super) type EndpointKey = (u64, u64);

/// Key of an endpoint that may take part in a link, and the endpoint.
pub(super) type Candidate<'a> = (&'a EndpointKey, &'a Waiting);

/// An endpoint that has arrived.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) at: LogTime,
    pub(super) endpoint: Box<LinkEndpoint>,
    pub(super) state: State,
    /// True for a server in an image with clusters of which the place was known when it arrived.
    pub(super) had_place: bool,
}

impl Waiting {
    /// Returns whether no other endpoint that takes part is on its way.
    pub(super) fn has_settled(&self, now: LogTime) -> bool {
        self.has_waited(now, SETTLE_MS)
    }

    /// Returns whether others have had the time to show more.
    pub(super) fn has_waited_twice(&self, now: LogTime) -> bool {
        self.has_waited(now, 2 * SETTLE_MS)
    }

    fn has_waited(&self, now: LogTime, ms: u64) -> bool {
        now.0.saturating_sub(self.at.0) > ms
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    Open,
    /// A client with a server, which may have more.
    Linked,
    /// An endpoint that had a choice, and so is still one of the choices of others.
    Refused,
    /// A server that has a choice, and is looked at again when the clocks may be better known.
    Doubtful,
}

impl State {
    /// Returns whether a decision is due.
    pub(super) fn is_open(self) -> bool {
        matches!(self, State::Open | State::Doubtful)
    }
}
