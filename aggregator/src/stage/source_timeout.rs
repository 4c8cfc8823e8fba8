//! Timeouts of inactive sources, by the log's time.
//!
//! *In*: the log's time and the source of each record. *Out*: the sources to close and the sources
//! to forget, in the order of their ids.
//!
//! *Invariant*: a function of the records. The log's time is the greatest so far: with `CreateTime`
//! it is the producers' clocks, and may go back.

use std::collections::BTreeMap;

use blkkin_wire::ids::Source;
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

/// Log time of the last record of each source.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SourceTimeouts {
    now: LogTime,
    sources: BTreeMap<Source, LastRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct LastRecord {
    at: LogTime,
    closed: bool,
}

/// A timeout that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    Close(Source),
    Forget(Source),
}

impl SourceTimeouts {
    /// Advances the log's time to `at`, and returns the timeouts that expired.
    pub(super) fn advance(
        &mut self,
        at: Option<LogTime>,
        close_after: u64,
        forget_after: u64,
    ) -> Vec<Timeout> {
        let Some(at) = at.filter(|at| *at > self.now) else { return Vec::new() };
        self.now = at;
        let mut due = Vec::new();
        self.sources.retain(|source, last| {
            let idle = at.0.saturating_sub(last.at.0);
            if idle > forget_after {
                due.push(Timeout::Forget(*source));
                return false;
            }
            if idle > close_after && !std::mem::replace(&mut last.closed, true) {
                due.push(Timeout::Close(*source));
            }
            true
        });
        due
    }

    /// Records activity of `source`.
    pub(super) fn touch(&mut self, source: Source) {
        self.sources.insert(source, LastRecord { at: self.now, closed: false });
    }

    /// Retains the sources for which `followed` returns true.
    pub(super) fn retain(&mut self, followed: impl Fn(&Source) -> bool) {
        self.sources.retain(|source, _| followed(source));
    }

    /// Returns the number of sources.
    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::SOURCE;
    use blkkin_wire::ids::NodeId;

    #[test]
    fn inactive_sources_are_closed_once_and_later_forgotten_by_the_logs_time() {
        let other = Source { node: NodeId(99), ..SOURCE };
        let mut timeouts = SourceTimeouts::default();
        let advance = |timeouts: &mut SourceTimeouts, at| timeouts.advance(Some(LogTime(at)), 30, 100);
        assert_eq!(advance(&mut timeouts, 1_000), []);
        timeouts.touch(SOURCE);
        assert_eq!(advance(&mut timeouts, 1_020), []);
        timeouts.touch(other);
        assert_eq!(advance(&mut timeouts, 1_031), [Timeout::Close(SOURCE)]);
        assert_eq!(advance(&mut timeouts, 1_032), []);
        assert_eq!(advance(&mut timeouts, 500), [], "the log time never goes back");
        assert_eq!(advance(&mut timeouts, 1_101), [Timeout::Forget(SOURCE), Timeout::Close(other)]);
        timeouts.touch(other);
        assert_eq!(advance(&mut timeouts, 1_132), [Timeout::Close(other)]);
        assert_eq!(timeouts.advance(None, 30, 100), []);
    }
}
