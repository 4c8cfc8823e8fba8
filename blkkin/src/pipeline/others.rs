//! Kernel work that was not done for whoever is followed.
//!
//! *In*: traces. *Out*: those that belong to the answer. A journal commits for all who write, and the kernel side
//! records every commit, since which call waits for it is known only at that call's return. Where one command is
//! followed, a commit that none of its calls waited for would show others' writes, and their devices, as its own.
//!
//! *Invariant*: a commit that a kept call links to is kept, once: one that was left out comes back with a call that
//! returned too late to be its primary.
//!
//! *Rejected*: to mark such commits and show them all the same: "what did CMD cause" has no place for them.

use std::collections::HashSet;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_tracer::Follow;
use blkkin_wire::ids::SpanId;

/// Commits remembered that came back. The join itself keeps 4,096 for such calls; beyond these none comes back.
const BACK_MAX: usize = 65_536;

/// Tells others' work apart, and counts it.
#[derive(Debug)]
pub(super) struct Others {
    follow: Follow,
    commits: u64,
    back: HashSet<SpanId>,
}

impl Others {
    pub(super) fn new(follow: Follow) -> Self {
        Others { follow, commits: 0, back: HashSet::new() }
    }

    /// Whether `trace` is none of the followed tasks' doing.
    pub(super) fn own(&mut self, trace: &Trace) -> bool {
        if self.follow == Follow::All {
            return false;
        }
        match trace.root {
            Root::Commit(_) => {
                let own = trace.adopted_by.is_none();
                self.commits += u64::from(own);
                own
            }
            // A page fault of a followed task is a bio; a request alone was made for a bio that nobody follows.
            Root::Kernel => trace.bios.is_empty(),
            Root::Call(_) | Root::Operation(_) | Root::Missing => false,
        }
    }

    /// Commits left out before that `call` waited for all the same.
    pub(super) fn bring_back<'a>(&mut self, call: &'a Trace) -> Vec<&'a Trace> {
        if self.follow == Follow::All {
            return Vec::new();
        }
        let commits = call.causes.iter().map(|cause| &*cause.trace);
        let back: Vec<_> = commits
            .filter(|commit| commit.adopted_by.is_none())
            .filter(|commit| self.back.len() < BACK_MAX && self.back.insert(commit.root_span))
            .collect();
        self.commits = self.commits.saturating_sub(back.len() as u64);
        back
    }

    /// Journal commits that no recorded call waited for.
    pub(super) fn commits(&self) -> u64 {
        self.commits
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use blkkin_aggregator::trace::{Adoption, Cause};
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::{BlockStatus, CommitEvent};

    use super::*;
    use crate::tail::tests::{bio, write};

    fn commit(adopted: bool) -> Trace {
        let mut trace = write(None);
        let call = trace.call().unwrap().clone();
        let adoption = Adoption { trace: trace.id, call: call.span };
        trace.root = Root::Commit(CommitEvent {
            span: SpanId(50),
            task: call.task,
            start: MonotonicNs(1),
            end: MonotonicNs(2),
            device: call.file.unwrap().file.device,
            tid: 7,
            bios: 0,
        });
        trace.root_span = SpanId(50);
        trace.adopted_by = adopted.then_some(adoption);
        trace
    }

    #[test]
    fn commits_that_no_followed_call_waited_for_are_others() {
        let mut others = Others::new(Follow::Marked);
        assert!(others.own(&commit(false)));
        assert!(!others.own(&commit(true)));
        assert!(!others.own(&write(None)));
        assert_eq!(others.commits(), 1);
    }

    #[test]
    fn whoever_asks_for_everything_gets_everything() {
        let mut others = Others::new(Follow::All);
        assert!(!others.own(&commit(false)));
        assert_eq!(others.commits(), 0);
    }

    #[test]
    fn a_page_fault_of_a_followed_task_is_its_own() {
        let mut others = Others::new(Follow::Marked);
        let mut fault = write(None);
        fault.root = Root::Kernel;
        assert!(others.own(&fault), "no bio of a followed task");
        fault.bios.push(bio(6_000_000, BlockStatus(0)));
        assert!(!others.own(&fault));
        assert_eq!(others.commits(), 0, "it is no commit");
    }

    #[test]
    fn a_commit_comes_back_once_with_calls_that_return_late() {
        let mut others = Others::new(Follow::Marked);
        let left_out = commit(false);
        assert!(others.own(&left_out));
        let mut late = write(None);
        late.causes.push(Cause { trace: Arc::new(left_out), primary: false });
        assert_eq!(others.bring_back(&late).len(), 1);
        assert_eq!(others.bring_back(&late).len(), 0);
        assert_eq!(others.commits(), 0);
    }
}
