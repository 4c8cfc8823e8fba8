//! Journal commits, write-back and other kernel work that the traced tasks did not cause.
//!
//! *In*: traces. *Out*: those that belong to the traced tasks. A journal commit serves all writers,
//! and the kernel side records every commit, because only the return of a system call shows which
//! one waited for it. When one command is traced, a commit that none of its calls waited for would
//! attribute other writers' I/O to it.
//!
//! The kernel's worker writes back data of all programs. When one command is traced, only write-back
//! with a recorded writer is the command's. The coverage counts the rest
//! (`report/src/collect/cause.rs`).
//!
//! *Invariant*: a commit that a reported call links to is reported, once. A commit dropped earlier
//! is recovered with a call that returned too late to be its primary waiter.
//!
//! *Rejected*: to mark such commits and show them: a trace of CMD shows only what CMD caused.

use std::collections::HashSet;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_tracer::TraceScope;
use blkkin_wire::ids::SpanId;

/// Maximum number of recovered commits to remember. The joiner keeps 4,096 for such calls; beyond
/// this limit none is recovered.
const RECOVERED_MAX: usize = 65_536;

/// Filters unrelated kernel work, and counts the commits.
#[derive(Debug)]
pub(super) struct UnrelatedCommits {
    scope: TraceScope,
    commits: u64,
    recovered: HashSet<SpanId>,
}

impl UnrelatedCommits {
    pub(super) fn new(scope: TraceScope) -> Self {
        UnrelatedCommits { scope, commits: 0, recovered: HashSet::new() }
    }

    /// Returns whether no traced task caused `trace`.
    pub(super) fn is_unrelated(&mut self, trace: &Trace) -> bool {
        if self.scope == TraceScope::All {
            return false;
        }
        match trace.root {
            Root::Commit(_) => {
                let unrelated = trace.shown_in.is_none();
                self.commits += u64::from(unrelated);
                unrelated
            }
            // A page fault of a traced task is a bio; a request alone belongs to an untraced bio.
            Root::Kernel => trace.bios.is_empty() || is_write_back_of_others(trace),
            Root::Call(_) | Root::AsyncIo | Root::DaemonSpan(_) | Root::Fault(_) | Root::Missing => false,
        }
    }

    /// Returns the commits dropped earlier that `call` waited for.
    pub(super) fn recover_for<'a>(&mut self, call: &'a Trace) -> Vec<&'a Trace> {
        if self.scope == TraceScope::All {
            return Vec::new();
        }
        let commits = call.waited_for.iter().map(|cause| &*cause.trace);
        let back: Vec<_> = commits
            .filter(|commit| commit.shown_in.is_none())
            .filter(|commit| self.recovered.len() < RECOVERED_MAX && self.recovered.insert(commit.root_span))
            .collect();
        self.commits = self.commits.saturating_sub(back.len() as u64);
        back
    }

    /// Returns the number of journal commits that no recorded call waited for.
    pub(super) fn count(&self) -> u64 {
        self.commits
    }
}

/// Returns whether the bio carries pages that no traced task is known to have written. Whichever
/// task submitted it: a task that has no memory left writes back pages of others.
fn is_write_back_of_others(trace: &Trace) -> bool {
    let Some(bio) = trace.bios.iter().find(|bio| bio.span == trace.root_span) else { return false };
    let origin = trace.page_origins.iter().find(|origin| origin.bio == bio.span);
    let has_writer = origin.is_some_and(|origin| !origin.writers.is_empty());
    bio.has_page_origin && bio.op.is_write() && !has_writer
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use blkkin_aggregator::trace::{ShownIn, WaitLink};
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, CommitEvent};
    use blkkin_wire::page_origin::{PageOriginEvent, PageWriter, WriterEvidence};

    use super::*;
    use crate::filter::post_filter::tests::{bio, write};

    /// A commit, which a trace of a call shows if it was adopted.
    pub(in super::super) fn commit(adopted: bool) -> Trace {
        let mut trace = write(None);
        let call = trace.call().unwrap().clone();
        let adoption = ShownIn { trace: trace.id, call: call.span };
        let (device, times) = (call.file.unwrap().file.device, [1, 2].map(MonotonicNs));
        trace.root = Root::Commit(CommitEvent::bare(SpanId(50), call.task, device, 7, times));
        trace.root_span = SpanId(50);
        trace.shown_in = adopted.then_some(adoption);
        trace
    }

    #[test]
    fn commits_without_a_traced_waiter_are_unrelated() {
        let mut commits = UnrelatedCommits::new(TraceScope::Marked);
        assert!(commits.is_unrelated(&commit(false)));
        assert!(!commits.is_unrelated(&commit(true)));
        assert!(!commits.is_unrelated(&write(None)));
        assert_eq!(commits.count(), 1);
    }

    #[test]
    fn tracing_everything_keeps_every_commit() {
        let mut commits = UnrelatedCommits::new(TraceScope::All);
        assert!(!commits.is_unrelated(&commit(false)));
        assert_eq!(commits.count(), 0);
    }

    #[test]
    fn page_fault_of_a_traced_task_is_kept() {
        let mut commits = UnrelatedCommits::new(TraceScope::Marked);
        let mut fault = write(None);
        fault.root = Root::Kernel;
        assert!(commits.is_unrelated(&fault), "no bio of a traced task");
        fault.bios.push(bio(6_000_000, BlockStatus(0)));
        assert!(!commits.is_unrelated(&fault));
        assert_eq!(commits.count(), 0, "not a commit");
    }

    #[test]
    fn write_back_without_a_traced_writer_is_unrelated() {
        let mut commits = UnrelatedCommits::new(TraceScope::Marked);
        let mut trace = write(None);
        trace.root = Root::Kernel;
        let bio = BioEvent { has_page_origin: true, span: trace.root_span, ..bio(6_000_000, BlockStatus(0)) };
        trace.bios.push(bio);
        assert!(commits.is_unrelated(&trace), "its origin never arrived");
        let writer = PageWriter {
            trace: trace.id,
            span: SpanId(9),
            task: bio.task,
            dirtied: MonotonicNs(1),
            bytes: bio.bytes,
            evidence: WriterEvidence::EndedBefore,
        };
        let origin = PageOriginEvent::bare([bio.span; 2], bio.queue, bio.bytes, vec![writer]);
        trace.page_origins.push(origin);
        assert!(!commits.is_unrelated(&trace));
        trace.page_origins[0].writers.clear();
        assert!(commits.is_unrelated(&trace));
        assert!(!UnrelatedCommits::new(TraceScope::All).is_unrelated(&trace));
        trace.bios[0].op = BlockOp(0);
        assert!(!commits.is_unrelated(&trace), "a read by a page fault");
    }

    #[test]
    fn late_call_recovers_its_commit_once() {
        let mut commits = UnrelatedCommits::new(TraceScope::Marked);
        let filtered = commit(false);
        assert!(commits.is_unrelated(&filtered));
        let mut late = write(None);
        late.waited_for.push(WaitLink { trace: Arc::new(filtered), primary: false });
        assert_eq!(commits.recover_for(&late).len(), 1);
        assert_eq!(commits.recover_for(&late).len(), 0);
        assert_eq!(commits.count(), 0);
    }
}
