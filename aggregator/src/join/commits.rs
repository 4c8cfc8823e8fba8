//! Finds the calls that waited for a journal commit, and chooses the one that shows it.
//!
//! *In*: commits, the traces of closed commits, and calls with their `sync_tid`. *Out*: a
//! `CommitWait` for each call, and a `Decision` for each commit.
//!
//! # The rule
//!
//! An fsync on file system `d` whose inode last changed in transaction `t` waited for commit `(d,
//! t)` if and only if that commit ended after the call began and before it returned. The evidence
//! is a rule, not identity: "ext4 transaction id". The rule has a tolerance. jbd2 marks a
//! transaction as committed a few microseconds before it reports the commit's end. A call that
//! begins in between did not wait and is linked all the same.
//!
//! - *The commit ended before the call began*: the data was durable already. The call has a
//!   transaction number, but no link. Without this condition, every fsync of an unchanged file
//!   would be linked to a commit of an hour ago.
//! - *The commit did not end before the call returned*: the call did not wait (an error), or the
//!   commit record was lost. Events arrive in the order of their ends. So when the call arrives,
//!   its commit is known or does not exist, and no call waits for a commit that may never arrive.
//!
//! # The primary
//!
//! Ten fsyncs may wait for one commit. The commit's spans can be children of one of them only, the
//! *primary*. The others have a span link. The primary is the call that began first, by (enter,
//! span), among those that returned within [`JoinConfig::commit_grace`](super::JoinConfig) of the
//! commit's end. Most likely this call requested the commit. Calls wait until then. A call that
//! returns later is linked and never becomes the primary, even if it began first.
//!
//! *Invariant*: a commit has at most one primary. All decisions use event time and the canonical
//! order, so a replay decides the same.
//!
//! *Rejected*: the first call to return as the primary. It needs no wait, but the wake-up order is
//! chance, and the commit might have begun before the call. *Rejected*: the latest call to enter.
//! *Rejected*: a copy of the commit below each call. Its requests would count ten times.

use std::collections::VecDeque;
use std::sync::Arc;

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{CommitEvent, SyscallEvent};
use blkkin_wire::ids::{DeviceId, SpanId};
use serde::{Deserialize, Serialize};

use super::config::JoinConfig;
use super::snapshot::by_key;
use crate::trace::Trace;
use crate::trace::id_map::IdMap;

/// Maximum number of parts (commits, their bios and requests) of decided commits that are retained
/// for calls that return late. A commit of a busy file system has about a thousand parts. 16 MiB
/// hold the last fifty of these, or 4,096 small ones.
const RETAINED_PARTS_MAX: usize = 65_536;

/// Identity of a commit: the journal's file system and the transaction number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct CommitKey {
    device: DeviceId,
    tid: u32,
}

impl CommitKey {
    pub(super) fn of(commit: &CommitEvent) -> Self {
        CommitKey { device: commit.device, tid: commit.tid }
    }

    fn awaited_by(call: &SyscallEvent) -> Option<Self> {
        let (tid, open) = call.sync_tid.zip(call.file.as_ref())?;
        Some(CommitKey { device: open.file.device, tid })
    }
}

/// Relation of a call to commits.
#[derive(Debug)]
pub(super) enum CommitWait {
    /// No commit is known for which the call waited.
    None,
    /// The call waited for this commit, and its primary is not decided.
    Undecided(CommitKey),
    /// The call waited for this commit and returned after the decision.
    Decided(Arc<Trace>),
}

/// A call that waited for a commit. The smallest one is the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub(super) enter: MonotonicNs,
    pub(super) span: SpanId,
}

/// A decided commit, with the calls that can be emitted now.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) trace: Trace,
    /// Waiting calls, in the order in which they returned.
    pub(super) waiters: Vec<Waiter>,
    pub(super) primary: Option<Waiter>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Commit {
    span: SpanId,
    end: MonotonicNs,
    state: State,
}

#[derive(Debug, Serialize, Deserialize)]
enum State {
    Undecided { trace: Option<Box<Trace>>, due: bool, waiters: Vec<Waiter> },
    Decided(Arc<Trace>),
}

/// Commits to which calls may still refer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Commits {
    #[serde(with = "by_key")]
    by_key: IdMap<CommitKey, Commit>,
    /// Keys of every known commit, the earliest first.
    by_age: VecDeque<CommitKey>,
    /// Undecided commits with the time of their decision, the earliest first.
    upcoming: VecDeque<(MonotonicNs, CommitKey)>,
    /// Number of parts of decided commits.
    retained_parts: usize,
    #[serde(skip)]
    grace: DurationNs,
    #[serde(skip)]
    max: usize,
}

impl Commits {
    pub(super) fn new(grace: DurationNs, max: usize) -> Self {
        let (by_age, upcoming) = (VecDeque::new(), VecDeque::new());
        Commits { by_key: IdMap::default(), by_age, upcoming, retained_parts: 0, grace, max: max.max(1) }
    }

    /// Sets the limits. They are not part of a snapshot.
    pub(super) fn set_limits(&mut self, config: &JoinConfig) {
        (self.grace, self.max) = (config.commit_grace, config.commits_max.max(1));
    }

    /// Returns the commit that must be decided and forgotten before `commit` is inserted.
    pub(super) fn evicted_by(&self, commit: &CommitEvent) -> Option<CommitKey> {
        let key = CommitKey::of(commit);
        let full = || self.by_age.front().copied().filter(|_| self.by_age.len() >= self.max);
        if self.by_key.contains_key(&key) { Some(key) } else { full() }
    }

    pub(super) fn insert(&mut self, commit: &CommitEvent) {
        let key = CommitKey::of(commit);
        let state = State::Undecided { trace: None, due: false, waiters: Vec::new() };
        self.by_key.insert(key, Commit { span: commit.span, end: commit.end, state });
        self.by_age.push_back(key);
        self.upcoming.push_back((MonotonicNs(commit.end.0.saturating_add(self.grace.0)), key));
    }

    /// Forgets a decided commit. See [`Commits::evicted_by`].
    pub(super) fn forget(&mut self, key: CommitKey) {
        if let Some(Commit { state: State::Decided(trace), .. }) = self.by_key.remove(&key) {
            self.retained_parts -= parts(&trace);
        }
        if self.by_age.front() == Some(&key) {
            self.by_age.pop_front();
        } else {
            self.by_age.retain(|&by_age| by_age != key);
        }
        self.upcoming.retain(|&(_, upcoming)| upcoming != key);
    }

    /// Returns whether `call` waited for a commit whose primary is not decided.
    pub(super) fn awaits_undecided(&self, call: &SyscallEvent) -> bool {
        let commit = CommitKey::awaited_by(call).and_then(|key| self.by_key.get(&key));
        commit
            .is_some_and(|commit| commit.end > call.enter && matches!(commit.state, State::Undecided { .. }))
    }

    /// Finds the commit for which `call` waited, and adds the call to its waiters.
    pub(super) fn wait(&mut self, call: &SyscallEvent) -> CommitWait {
        let Some(key) = CommitKey::awaited_by(call) else { return CommitWait::None };
        match self.by_key.get_mut(&key).filter(|commit| commit.end > call.enter) {
            None => CommitWait::None,
            Some(Commit { state: State::Decided(trace), .. }) => CommitWait::Decided(trace.clone()),
            Some(Commit { state: State::Undecided { waiters, .. }, .. }) => {
                waiters.push(Waiter { enter: call.enter, span: call.span });
                CommitWait::Undecided(key)
            }
        }
    }

    /// Removes a call that had to be closed before the commit was decided.
    pub(super) fn leave(&mut self, key: CommitKey, call: SpanId) {
        if let Some(Commit { state: State::Undecided { waiters, .. }, .. }) = self.by_key.get_mut(&key) {
            waiters.retain(|waiter| waiter.span != call);
        }
    }

    /// Returns the time at which the next commit is due.
    pub(super) fn next_due(&self) -> Option<MonotonicNs> {
        self.upcoming.front().map(|&(due, _)| due)
    }

    /// Removes the next due commit from the queue and marks it as due. The caller decides it if its
    /// trace is closed. Otherwise the decision follows when the trace is closed.
    pub(super) fn pop_due(&mut self) -> Option<CommitKey> {
        let (_, key) = self.upcoming.pop_front()?;
        if let Some(Commit { state: State::Undecided { due, .. }, .. }) = self.by_key.get_mut(&key) {
            *due = true;
        }
        Some(key)
    }

    /// Stores a commit's closed trace until the commit is due. Returns the trace if the commit is
    /// not known (any more).
    pub(super) fn close(&mut self, key: CommitKey, trace: Trace) -> CloseResult {
        match self.by_key.get_mut(&key) {
            Some(Commit { span, state: State::Undecided { trace: place @ None, due, .. }, .. })
                if *span == trace.root_span =>
            {
                *place = Some(Box::new(trace));
                if *due { CloseResult::Due } else { CloseResult::Early }
            }
            _ => CloseResult::Unknown(Box::new(trace)),
        }
    }

    /// Returns the span of a commit whose trace is still open.
    pub(super) fn open_span(&self, key: CommitKey) -> Option<SpanId> {
        match self.by_key.get(&key)? {
            Commit { span, state: State::Undecided { trace: None, .. }, .. } => Some(*span),
            _ => None,
        }
    }

    /// Chooses the primary, if the commit's trace is closed.
    pub(super) fn decide(&mut self, key: CommitKey) -> Option<Decision> {
        let Commit { state: State::Undecided { trace, waiters, .. }, .. } = self.by_key.get_mut(&key)? else {
            return None;
        };
        let (trace, waiters) = (*trace.take()?, std::mem::take(waiters));
        let primary = waiters.iter().min().copied();
        Some(Decision { trace, waiters, primary })
    }

    /// Stores a decided commit for calls that return late.
    pub(super) fn decided(&mut self, key: CommitKey, trace: Arc<Trace>) {
        if let Some(commit) = self.by_key.get_mut(&key) {
            self.retained_parts += parts(&trace);
            commit.state = State::Decided(trace);
        }
        while self.retained_parts > RETAINED_PARTS_MAX
            && let Some(earliest) = self.by_age.front().copied()
            && let Some(Commit { state: State::Decided(_), .. }) = self.by_key.get(&earliest)
        {
            self.forget(earliest);
        }
    }

    /// Returns all commits, the earliest first.
    pub(super) fn keys(&self) -> Vec<CommitKey> {
        self.by_age.iter().copied().collect()
    }
}

fn parts(trace: &Trace) -> usize {
    1 + trace.bios.len() + trace.requests.len()
}

/// Result of closing a commit's trace.
#[derive(Debug)]
pub(super) enum CloseResult {
    /// Stored; the commit can be decided now.
    Due,
    /// Stored until the commit is due.
    Early,
    /// No commit waits for this trace.
    Unknown(Box<Trace>),
}
