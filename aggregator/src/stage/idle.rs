//! Which sources the log has held nothing of for long.
//!
//! *In*: the log's time at each record, and whose it is. *Out*: who is to be closed, who to be forgotten, in the order of
//! their ids. *Invariant*: a function of the records: the log's time is the greatest so far, since with `CreateTime` it is the
//! producers' clocks and may go back.

use std::collections::BTreeMap;

use blkkin_wire::ids::Source;
use serde::{Deserialize, Serialize};

use super::LogTime;

/// When each source was heard of.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Idle {
    now: LogTime,
    heard: BTreeMap<Source, Heard>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Heard {
    at: LogTime,
    closed: bool,
}

/// What has become due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Close(Source),
    Forget(Source),
}

impl Idle {
    /// The log has come to `at`: what is due by that.
    pub(super) fn advance(&mut self, at: Option<LogTime>, close_after: u64, forget_after: u64) -> Vec<Due> {
        let Some(at) = at.filter(|at| *at > self.now) else { return Vec::new() };
        self.now = at;
        let mut due = Vec::new();
        self.heard.retain(|source, heard| {
            let silent = at.0.saturating_sub(heard.at.0);
            if silent > forget_after {
                due.push(Due::Forget(*source));
                return false;
            }
            if silent > close_after && !std::mem::replace(&mut heard.closed, true) {
                due.push(Due::Close(*source));
            }
            true
        });
        due
    }

    /// A record of `source` is in hand.
    pub(super) fn hear(&mut self, source: Source) {
        self.heard.insert(source, Heard { at: self.now, closed: false });
    }

    /// Keeps those that are followed.
    pub(super) fn retain(&mut self, followed: impl Fn(&Source) -> bool) {
        self.heard.retain(|source, _| followed(source));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.heard.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::tests::make::SOURCE;
    use blkkin_wire::ids::NodeId;

    #[test]
    fn who_is_silent_is_closed_once_and_later_forgotten_by_the_logs_time_alone() {
        let other = Source { node: NodeId(99), ..SOURCE };
        let mut idle = Idle::default();
        let advance = |idle: &mut Idle, at| idle.advance(Some(LogTime(at)), 30, 100);
        assert_eq!(advance(&mut idle, 1_000), []);
        idle.hear(SOURCE);
        assert_eq!(advance(&mut idle, 1_020), []);
        idle.hear(other);
        assert_eq!(advance(&mut idle, 1_031), [Due::Close(SOURCE)]);
        assert_eq!(advance(&mut idle, 1_032), []);
        assert_eq!(advance(&mut idle, 500), [], "a clock that goes back is not believed");
        assert_eq!(advance(&mut idle, 1_101), [Due::Forget(SOURCE), Due::Close(other)]);
        idle.hear(other);
        assert_eq!(advance(&mut idle, 1_132), [Due::Close(other)]);
        assert_eq!(idle.advance(None, 30, 100), []);
    }
}
