//! Which calls waited for which journal commit, and which of them shows it.
//!
//! *The link*: an fsync on file system `d` whose inode's last change is in transaction `t` waited for commit
//! `(d, t)` if and only if that commit ended after the call began and before it returned. Rule, not identity:
//! "ext4 transaction id". Its tolerance: jbd2 marks a transaction as committed a few microseconds before it
//! reports the commit's end; a call that comes in between did not wait and is linked all the same.
//!
//! - *Ended before the call began*: the data were durable already. There is a number, there is no link. Without
//!   this condition every fsync of an unchanged file would hang below a commit of an hour ago.
//! - *Never ended before the call returned*: the call did not wait (an error, or a commit record that was lost).
//!   Events come in the order of their ends, so when the call comes its commit is either known or there is none:
//!   nothing waits for a commit that may never come.
//!
//! *One shows it*. Ten fsyncs may wait for one commit; its spans can hang below one of them only (the *primary*),
//! the others are linked. The primary is the call that began first, by (enter, span), among those that returned
//! until [`JoinConfig::commit_grace`](super::JoinConfig) after the commit's end: most likely the one that asked
//! for it. Calls are held until then. Who returns later is linked, never primary, even if it began first: decided
//! is decided, so there are never two. All of this is by event time and canonical order, so a replay decides alike.
//!
//! *Rejected*: the first to return as primary (no holding, but wake-up order is chance, and the commit might have
//! begun before it); the latest to enter; copying the commit below each (its requests would count ten times).

use std::collections::VecDeque;
use std::sync::Arc;

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{CommitEvent, SyscallEvent};
use blkkin_wire::ids::{DeviceId, SpanId};
use serde::{Deserialize, Serialize};

use super::config::JoinConfig;
use super::hash::IdMap;
use super::saved::by_key;
use crate::trace::Trace;

/// Most parts (commits, their bios and requests) of decided commits that are kept for calls that return late. A commit
/// of a busy file system has a thousand: 16 MiB keep the last fifty of these, or 4,096 small ones.
const KEPT_PARTS_MAX: usize = 65_536;

/// Which commit: the journal's file system and the transaction's number.
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

/// What a call has to do with commits.
#[derive(Debug)]
pub(super) enum Waited {
    /// None that it waited for is known.
    Nothing,
    /// It waited for this one, whose primary is not decided.
    Open(CommitKey),
    /// It waited for this one and returned late.
    Decided(Arc<Trace>),
}

/// A call that waited. The least is the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub(super) enter: MonotonicNs,
    pub(super) span: SpanId,
}

/// A commit whose calls can be let go.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) trace: Trace,
    /// In the order in which they returned.
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

/// The commits that calls may still refer to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Commits {
    #[serde(with = "by_key")]
    by_key: IdMap<CommitKey, Commit>,
    /// All, from the earliest.
    made: VecDeque<CommitKey>,
    /// Those whose time has not come, from the earliest.
    upcoming: VecDeque<(MonotonicNs, CommitKey)>,
    /// Parts of those that are decided.
    kept_parts: usize,
    #[serde(skip)]
    grace: DurationNs,
    #[serde(skip)]
    max: usize,
}

impl Commits {
    pub(super) fn new(grace: DurationNs, max: usize) -> Self {
        let (made, upcoming) = (VecDeque::new(), VecDeque::new());
        Commits { by_key: IdMap::default(), made, upcoming, kept_parts: 0, grace, max: max.max(1) }
    }

    /// Has these bounds from now on.
    pub(super) fn set_bounds(&mut self, config: &JoinConfig) {
        (self.grace, self.max) = (config.commit_grace, config.commits_max.max(1));
    }

    /// The commit that has to be decided and forgotten before `commit` is inserted.
    pub(super) fn in_the_way(&self, commit: &CommitEvent) -> Option<CommitKey> {
        let key = CommitKey::of(commit);
        let full = || self.made.front().copied().filter(|_| self.made.len() >= self.max);
        if self.by_key.contains_key(&key) { Some(key) } else { full() }
    }

    pub(super) fn insert(&mut self, commit: &CommitEvent) {
        let key = CommitKey::of(commit);
        let state = State::Undecided { trace: None, due: false, waiters: Vec::new() };
        self.by_key.insert(key, Commit { span: commit.span, end: commit.end, state });
        self.made.push_back(key);
        self.upcoming.push_back((MonotonicNs(commit.end.0.saturating_add(self.grace.0)), key));
    }

    /// Of a commit that is decided; with [`Commits::in_the_way`].
    pub(super) fn forget(&mut self, key: CommitKey) {
        if let Some(Commit { state: State::Decided(trace), .. }) = self.by_key.remove(&key) {
            self.kept_parts -= parts(&trace);
        }
        if self.made.front() == Some(&key) {
            self.made.pop_front();
        } else {
            self.made.retain(|&made| made != key);
        }
        self.upcoming.retain(|&(_, upcoming)| upcoming != key);
    }

    /// Whether `call` waited for a commit whose primary is not decided.
    pub(super) fn is_open(&self, call: &SyscallEvent) -> bool {
        let commit = CommitKey::awaited_by(call).and_then(|key| self.by_key.get(&key));
        commit
            .is_some_and(|commit| commit.end > call.enter && matches!(commit.state, State::Undecided { .. }))
    }

    /// Finds the commit that `call` waited for and books the call with it.
    pub(super) fn wait(&mut self, call: &SyscallEvent) -> Waited {
        let Some(key) = CommitKey::awaited_by(call) else { return Waited::Nothing };
        match self.by_key.get_mut(&key).filter(|commit| commit.end > call.enter) {
            None => Waited::Nothing,
            Some(Commit { state: State::Decided(trace), .. }) => Waited::Decided(trace.clone()),
            Some(Commit { state: State::Undecided { waiters, .. }, .. }) => {
                waiters.push(Waiter { enter: call.enter, span: call.span });
                Waited::Open(key)
            }
        }
    }

    /// The call had to be closed before the commit was decided.
    pub(super) fn leave(&mut self, key: CommitKey, call: SpanId) {
        if let Some(Commit { state: State::Undecided { waiters, .. }, .. }) = self.by_key.get_mut(&key) {
            waiters.retain(|waiter| waiter.span != call);
        }
    }

    /// When the next commit is due.
    pub(super) fn next_due(&self) -> Option<MonotonicNs> {
        self.upcoming.front().map(|&(due, _)| due)
    }

    /// The commit due next, from now on no more upcoming. Decide it if its trace is closed; else closing will.
    pub(super) fn pop_due(&mut self) -> Option<CommitKey> {
        let (_, key) = self.upcoming.pop_front()?;
        if let Some(Commit { state: State::Undecided { due, .. }, .. }) = self.by_key.get_mut(&key) {
            *due = true;
        }
        Some(key)
    }

    /// Keeps a commit's closed trace until it is due; gives it back when the commit is not (or no more) known.
    pub(super) fn close(&mut self, key: CommitKey, trace: Trace) -> Closed {
        match self.by_key.get_mut(&key) {
            Some(Commit { span, state: State::Undecided { trace: place @ None, due, .. }, .. })
                if *span == trace.root_span =>
            {
                *place = Some(Box::new(trace));
                if *due { Closed::Due } else { Closed::Early }
            }
            _ => Closed::Unknown(Box::new(trace)),
        }
    }

    /// The span of a commit whose trace is still open.
    pub(super) fn open_span(&self, key: CommitKey) -> Option<SpanId> {
        match self.by_key.get(&key)? {
            Commit { span, state: State::Undecided { trace: None, .. }, .. } => Some(*span),
            _ => None,
        }
    }

    /// Chooses the primary, where the trace is closed.
    pub(super) fn decide(&mut self, key: CommitKey) -> Option<Decision> {
        let Commit { state: State::Undecided { trace, waiters, .. }, .. } = self.by_key.get_mut(&key)? else {
            return None;
        };
        let (trace, waiters) = (*trace.take()?, std::mem::take(waiters));
        let primary = waiters.iter().min().copied();
        Some(Decision { trace, waiters, primary })
    }

    /// For calls that return late.
    pub(super) fn decided(&mut self, key: CommitKey, trace: Arc<Trace>) {
        if let Some(commit) = self.by_key.get_mut(&key) {
            self.kept_parts += parts(&trace);
            commit.state = State::Decided(trace);
        }
        while self.kept_parts > KEPT_PARTS_MAX
            && let Some(earliest) = self.made.front().copied()
            && let Some(Commit { state: State::Decided(_), .. }) = self.by_key.get(&earliest)
        {
            self.forget(earliest);
        }
    }

    /// All commits, from the earliest.
    pub(super) fn keys(&self) -> Vec<CommitKey> {
        self.made.iter().copied().collect()
    }
}

fn parts(trace: &Trace) -> usize {
    1 + trace.bios.len() + trace.requests.len()
}

/// What became of a commit's closed trace.
#[derive(Debug)]
pub(super) enum Closed {
    /// Kept; the commit can be decided now.
    Due,
    /// Kept until it is due.
    Early,
    /// No such commit waits for it.
    Unknown(Box<Trace>),
}
