//! The status of one destination, shared by its worker and the observers.
//!
//! *In*: the worker's counters, delivery attempts and outages. *Out*: a consistent view under one
//! lock. *Invariant*: the shutdown summary reads the same [`DestinationStats`].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blkkin_bus::kafka::DEAD;

use super::stats::DestinationStats;
use crate::log::Limiter;
use crate::service::{Heartbeat, LagGauge, Outage};

/// The counters, lag and outages of a destination, for metrics, health and the summary, and the limits of its
/// log lines.
#[derive(Debug)]
pub(super) struct DestinationStatus {
    /// The destination's name.
    pub(super) name: String,
    /// Beats for each iteration and each attempt.
    pub(super) heartbeat: Heartbeat,
    /// The lag of the consumer group's local member.
    pub(super) lag: LagGauge,
    /// Limit of lines about records that could not be decoded.
    pub(super) unreadable_lines: Limiter,
    /// Limit of lines about requests that the destination accepted in part.
    pub(super) not_taken_lines: Limiter,
    stats: Mutex<DestinationStats>,
    outages: Mutex<[Option<Outage>; 2]>,
}

/// A peer that may be unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The destination.
    Destination,
    /// The dead-letter topic.
    DeadLetterTopic,
}

/// The effect of an outage report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutageChange {
    /// An outage began.
    Began,
    /// The outage ended after this time.
    Ended(Duration),
    /// No change.
    Unchanged,
}

impl DestinationStatus {
    /// Creates the status of a destination.
    pub(super) fn new(name: String) -> DestinationStatus {
        let (heartbeat, lag, stats, outages) = Default::default();
        let [unreadable_lines, not_taken_lines] = ["records", "requests"].map(Limiter::new);
        DestinationStatus { name, heartbeat, lag, unreadable_lines, not_taken_lines, stats, outages }
    }

    /// Locks the counters.
    pub(super) fn stats(&self) -> MutexGuard<'_, DestinationStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a peer is unreachable for a reason, or reachable.
    pub(super) fn outage(&self, peer: Peer, why: Option<String>) -> OutageChange {
        let outage = &mut self.outages()[peer as usize];
        match (why, &mut *outage) {
            (Some(why), Some(known)) => {
                known.reason = why;
                OutageChange::Unchanged
            }
            (Some(why), none) => {
                *none = Some(Outage::new(why));
                OutageChange::Began
            }
            (None, _) => {
                outage.take().map_or(OutageChange::Unchanged, |known| OutageChange::Ended(known.elapsed()))
            }
        }
    }

    /// Returns whether the destination is reachable, as far as known.
    pub(super) fn is_up(&self) -> bool {
        self.outages()[Peer::Destination as usize].is_none()
    }

    /// Returns a note on each unreachable peer.
    pub(super) fn notes(&self) -> Vec<String> {
        let name = [self.name.clone(), format!("{DEAD}, for spans that {} refuses,", self.name)];
        let note = |(name, outage): (String, &Option<Outage>)| {
            outage.as_ref().map(|outage| format!("{name} is unreachable {outage}"))
        };
        name.into_iter().zip(self.outages().iter()).filter_map(note).collect()
    }

    fn outages(&self) -> MutexGuard<'_, [Option<Outage>; 2]> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_begins_once_and_ends_once() {
        let status = DestinationStatus::new("zipkin=x".to_owned());
        let unreachable = |why: &str| status.outage(Peer::Destination, Some(why.to_owned()));
        assert_eq!(status.outage(Peer::Destination, None), OutageChange::Unchanged);
        assert_eq!((unreachable("a"), unreachable("b")), (OutageChange::Began, OutageChange::Unchanged));
        assert!(!status.is_up());
        let notes = status.notes();
        assert!(notes.len() == 1 && notes[0].starts_with("zipkin=x is unreachable since 20"), "{notes:?}");
        assert!(notes[0].ends_with("s): b"), "{notes:?}");
        assert!(matches!(status.outage(Peer::Destination, None), OutageChange::Ended(_)));
        assert!(status.is_up() && status.notes().is_empty());
        assert_eq!(status.outage(Peer::DeadLetterTopic, Some("c".to_owned())), OutageChange::Began);
        assert!(
            status.is_up() && status.notes()[0].starts_with("blkkin.dead, for spans that zipkin=x refuses,")
        );
    }
}
