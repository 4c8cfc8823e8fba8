//! What daemons' operations were, and which of them each thread works for.
//!
//! *In*: facts ([`Said`]), in order of time. *Out*: an operation when it has ended, or when it is known that its end will not come;
//! and every change of what a thread works for ([`Told`]).
//!
//! # Which operation a system call was made for
//!
//! A thread that says "I work for A" and then makes a call, makes it for A: it says nothing while it is inside the call, so what it
//! said last before the call's return is what it had said at its entry. No time is compared with another but to put both
//! streams, of one clock, in order. This is a rule and not an identity, and the link says so: it believes the daemon. Where a
//! program publishes the span of each thread, the kernel's side reads it at the call itself, and that wins.
//!
//! *Invariant*: a wrong link is worse than none. So, whenever what a thread works for may have changed unheard, it works for
//! nothing that is known:
//!
//! - *Events were lost*, between two times. An end or a leave may be among them, of any thread (buffers are a CPU's, not a
//!   process's). From the first of these times until the second nobody works for anything, and after it only for what is said
//!   anew. Counter-example to anything milder: thread T enters A, `leave A` is lost, T then reads its configuration for an hour:
//!   all of that would be A's.
//! - *It enters what nobody heard the begin of.* Then it works for that, and not for what it had entered before.
//! - *A thread leaves what it had entered first.* What lay above it was left as well, whether that was said or not.
//! - *A process is gone.* Its threads' numbers go to others.
//!
//! *Rejected*: "the operation whose time encloses the call's" (a pool of threads has a hundred such); to keep a thread's stack over
//! a loss if the next event fits it (that event may be of the same operation, called again).
//!
//! # When an operation has ended
//!
//! When it says so. Of a process that is gone, what had not ended is given out as unfinished, with the process's end as its own. Of
//! blkin's spans nobody says an end: they are what was said of them, and are given out after [`SILENCE`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::{Pid, SpanId, Tid, TraceId};
use blkkin_wire::meeting::{Meeting, MeetingEvent, Side};
use blkkin_wire::operation::{Note, NoteValue, OperationEvent, Outcome, WHOLE};
use blkkin_wire::span::SpanKind;

use crate::fact::{Fact, Kind, Named, Said, Span, Thread, Trace};

/// Operations open at once; beyond it new ones are not taken, and counted. Some 40 MiB if each has a few notes.
const OPEN_MAX: usize = 65_536;
/// Threads that work for something.
const THREADS_MAX: usize = 65_536;
/// Operations that a thread has entered and not left.
const DEPTH_MAX: usize = 32;
/// Notes of one operation, and bytes of one's words.
const NOTES_MAX: usize = 64;
const WORDS_MAX: usize = 1_024;
/// After the last word about a span of blkin's, ns. Whoever sends a request on says something of it before and after.
pub const SILENCE: u64 = 1_000_000_000;

/// What a thread works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Above {
    /// The trace.
    pub trace: TraceId,
    /// The operation.
    pub span: SpanId,
}

/// Hears what comes of facts, in order of time.
pub trait Told {
    /// An operation is over, or was one end of a request.
    fn event(&mut self, event: LayerEvent);
    /// From `at` on the thread works for this.
    fn works(&mut self, at: MonotonicNs, thread: Thread, above: Option<Above>);
    /// From `at` on it is not known what anybody works for, until it is said.
    fn nobody(&mut self, at: MonotonicNs);
}

/// What became of facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Operations that began.
    pub begun: u64,
    /// Of these given out after their end.
    pub ended: u64,
    /// Of these given out without one.
    pub unfinished: u64,
    /// That had no place.
    pub no_room: u64,
    /// Begins of a span that was open: they are not believed.
    pub twice: u64,
    /// Facts about spans of which no begin was heard, or whose end had been.
    pub strangers: u64,
    /// Notes left out, as there were too many of one operation.
    pub notes_dropped: u64,
    /// Events that were lost, as the streams count them.
    pub lost: u64,
    /// Of the losses, those that were told after later facts had been believed.
    pub lost_late: u64,
}

/// The state.
#[derive(Debug, Default)]
pub struct Operations {
    open: HashMap<(u32, Span), Open>,
    /// What each has entered and not left; of what is not known to be open only that it was entered.
    threads: HashMap<Thread, Vec<(Span, Option<Above>)>>,
    /// Nothing that is said before is believed of threads.
    doubtful_until: u64,
    now: u64,
    /// Nothing of blkin's is due before.
    due: u64,
    books: Books,
}

#[derive(Debug)]
struct Open {
    event: OperationEvent,
    root: SpanId,
    meetings: Vec<MeetingEvent>,
    /// Of blkin's: given out so long after the last word.
    last_word: Option<u64>,
}

impl Open {
    fn above(&self) -> Above {
        Above { trace: self.event.trace, span: self.event.span }
    }
}

impl Operations {
    /// Takes the next fact in.
    pub fn take(&mut self, said: &Said<'_>, told: &mut impl Told) {
        self.now = self.now.max(said.at);
        self.silence(self.now, told);
        let Said { at, thread, ref fact } = *said;
        match *fact {
            Fact::Begin { trace, span, parent, kind, on, kept_per_million, name, service } => {
                let open = self.open(said, trace, span, parent, [name, service]);
                let above = open.map(|open| {
                    (open.event.kind, open.event.kept) = (span_kind(kind), kept_per_million);
                    open.above()
                });
                if on {
                    self.enter(at, thread, span, above, told);
                }
            }
            Fact::End { span, status } => self.end(at, thread, span, status, told),
            Fact::Enter(span) => {
                let above = self.open.get(&(thread.pid, span)).map(Open::above);
                self.books.strangers += u64::from(above.is_none());
                self.enter(at, thread, span, above, told);
            }
            Fact::Leave(span) => self.leave(at, thread, span, told),
            Fact::Event { span, name } => self.note(said, span, name, NoteValue::Moment),
            Fact::Text { span, key, value } => self.note(said, span, key, NoteValue::Text(words(value))),
            Fact::Number { span, key, value } => self.note(said, span, key, NoteValue::Number(value)),
            Fact::Meeting { span, answered, unique, rule, connection, cookie } => {
                let meeting = Meeting { rule: words(rule), connection: words(connection), cookie };
                self.meeting(thread, span, answered, unique, meeting);
            }
            Fact::Named { trace, span, parent, name, service, endpoint, what } => {
                self.named(said, trace, span, parent, [name, service], endpoint, what);
            }
            Fact::Lost { from, until, events } => self.lost(from, until, events, told),
        }
    }

    /// The process has ended: so have its threads, and no end of its operations will be heard.
    pub fn gone(&mut self, pid: u32, at: u64, told: &mut impl Told) {
        self.now = self.now.max(at);
        self.threads.retain(|thread, _| {
            let stays = thread.pid != pid;
            if !stays {
                told.works(MonotonicNs(at), *thread, None);
            }
            stays
        });
        self.cut(at, |open| open.event.pid.0 == pid, told);
    }

    /// Nothing more will come.
    pub fn finish(&mut self, at: u64, told: &mut impl Told) {
        self.cut(at.max(self.now), |_| true, told);
        self.threads.clear();
    }

    /// Gives out what of blkin's has been silent for long enough by `now`.
    pub fn silence(&mut self, now: u64, told: &mut impl Told) {
        if now < self.due {
            return;
        }
        let over = |open: &Open| open.last_word.is_some_and(|last| last + SILENCE <= now);
        let mut due: Vec<_> = self.open.iter().filter(|(_, open)| over(open)).map(|(key, _)| *key).collect();
        due.sort_unstable_by_key(|key| self.open[key].event.end);
        for key in due {
            self.give_out(key, told);
        }
        let next = self.open.values().filter_map(|open| open.last_word).min();
        self.due = next.map_or(u64::MAX, |last| last + SILENCE);
    }

    /// What became of facts.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Operations that have not ended.
    pub fn pending(&self) -> usize {
        self.open.len()
    }

    /// A new one; none if it is open already, or there is no room.
    fn open(
        &mut self,
        said: &Said<'_>,
        trace: Trace,
        span: Span,
        parent: Option<Span>,
        [name, service]: [&str; 2],
    ) -> Option<&mut Open> {
        let pid = said.thread.pid;
        let above = parent.and_then(|parent| self.open.get(&(pid, parent)));
        let root = above.map_or(SpanId(span.0), |above| above.root);
        let continued = parent.is_some() && above.is_none();
        let full = self.open.len() >= OPEN_MAX;
        let Entry::Vacant(place) = self.open.entry((pid, span)) else {
            self.books.twice += 1;
            return None;
        };
        if full {
            self.books.no_room += 1;
            return None;
        }
        self.books.begun += 1;
        let event = OperationEvent {
            span: SpanId(span.0),
            parent: parent.map(|parent| SpanId(parent.0)),
            continued,
            trace: TraceId(trace.0),
            kind: SpanKind::Local,
            name: words(name),
            service: words(service),
            begin: MonotonicNs(said.at),
            end: MonotonicNs(said.at),
            pid: Pid(pid),
            tid: Tid(said.thread.tid),
            outcome: Outcome::Done,
            kept: WHOLE,
            notes: Vec::new(),
        };
        Some(place.insert(Open { event, root, meetings: Vec::new(), last_word: None }))
    }

    fn end(&mut self, at: u64, thread: Thread, span: Span, status: i32, told: &mut impl Told) {
        self.leave(at, thread, span, told);
        let key = (thread.pid, span);
        let Some(open) = self.open.get_mut(&key) else {
            self.books.strangers += 1;
            return;
        };
        open.event.end = MonotonicNs(at.max(open.event.begin.0));
        if status != 0 {
            open.event.outcome = Outcome::Failed(status.unsigned_abs());
        }
        self.give_out(key, told);
    }

    /// Also of what is not known: what it had entered before is not what it works for now.
    fn enter(&mut self, at: u64, thread: Thread, span: Span, above: Option<Above>, told: &mut impl Told) {
        let room = self.threads.len() < THREADS_MAX || self.threads.contains_key(&thread);
        if at < self.doubtful_until || !room {
            return;
        }
        let stack = self.threads.entry(thread).or_default();
        // Deeper than anybody means to go: what is below is forgotten, and then known to nobody.
        if stack.len() >= DEPTH_MAX {
            stack.clear();
        }
        let before = stack.last().and_then(|(_, above)| *above);
        stack.push((span, above));
        if before != above {
            told.works(MonotonicNs(at), thread, above);
        }
    }

    fn leave(&mut self, at: u64, thread: Thread, span: Span, told: &mut impl Told) {
        let Some(stack) = self.threads.get_mut(&thread) else { return };
        let Some(place) = stack.iter().rposition(|(entered, _)| *entered == span) else { return };
        let before = stack.last().and_then(|(_, above)| *above);
        stack.truncate(place);
        let now = stack.last().and_then(|(_, above)| *above);
        if stack.is_empty() {
            self.threads.remove(&thread);
        }
        if now != before {
            told.works(MonotonicNs(at), thread, now);
        }
    }

    fn note(&mut self, said: &Said<'_>, span: Span, key: &str, value: NoteValue) {
        match self.open.get_mut(&(said.thread.pid, span)) {
            Some(open) if open.event.notes.len() < NOTES_MAX => {
                open.event.notes.push(Note { at: MonotonicNs(said.at), key: words(key), value });
            }
            Some(_) => self.books.notes_dropped += 1,
            None => self.books.strangers += 1,
        }
    }

    fn meeting(&mut self, thread: Thread, span: Span, answered: bool, unique: bool, meeting: Meeting) {
        let Some(open) = self.open.get_mut(&(thread.pid, span)) else {
            self.books.strangers += 1;
            return;
        };
        if open.meetings.len() >= NOTES_MAX {
            self.books.notes_dropped += 1;
            return;
        }
        open.meetings.push(MeetingEvent {
            span: open.event.span,
            root: open.root,
            side: if answered { Side::Answered } else { Side::Asked },
            meeting,
            unique,
            begin: open.event.begin,
            // Known when the operation has ended.
            end: open.event.begin,
        });
    }

    #[allow(clippy::too_many_arguments, reason = "they are one event's fields")]
    fn named(
        &mut self,
        said: &Said<'_>,
        trace: Trace,
        span: Span,
        parent: Option<Span>,
        names: [&str; 2],
        (ip, port): (&str, i64),
        what: Named<'_>,
    ) {
        let key = (said.thread.pid, span);
        if !self.open.contains_key(&key) {
            let Some(open) = self.open(said, trace, span, parent, names) else { return };
            open.last_word = Some(said.at);
            if !ip.is_empty() {
                let at = Note {
                    at: MonotonicNs(said.at),
                    key: "blkin.endpoint".into(),
                    value: NoteValue::Text(format!("{ip}:{port}").into()),
                };
                open.event.notes.push(at);
            }
            self.due = self.due.min(said.at + SILENCE);
        }
        let value = match what {
            Named::Moment(word) => {
                if let Some(open) = self.open.get_mut(&key) {
                    match word {
                        "sr" | "ss" => open.event.kind = SpanKind::Server,
                        "cs" | "cr" => open.event.kind = SpanKind::Client,
                        _ => {}
                    }
                }
                (word, NoteValue::Moment)
            }
            Named::Text(key, text) => (key, NoteValue::Text(words(text))),
            Named::Number(key, number) => (key, NoteValue::Number(number)),
        };
        self.note(said, span, value.0, value.1);
        if let Some(open) = self.open.get_mut(&key) {
            open.last_word = Some(said.at);
            open.event.end = MonotonicNs(said.at.max(open.event.end.0));
        }
    }

    fn lost(&mut self, from: u64, until: u64, events: u64, told: &mut impl Told) {
        self.books.lost += events;
        self.books.lost_late += u64::from(from < self.now);
        self.doubtful_until = self.doubtful_until.max(until);
        self.threads.clear();
        told.nobody(MonotonicNs(from));
    }

    /// Gives out what has no end.
    fn cut(&mut self, at: u64, which: impl Fn(&Open) -> bool, told: &mut impl Told) {
        let mut all: Vec<_> = self.open.iter().filter(|(_, open)| which(open)).map(|(key, _)| *key).collect();
        // Parts first, as if they had ended one after another.
        all.sort_unstable_by_key(|key| std::cmp::Reverse((self.open[key].event.begin, key.1)));
        for key in all {
            if let Some(open) = self.open.get_mut(&key)
                && open.last_word.is_none()
            {
                open.event.outcome = Outcome::Unfinished;
                open.event.end = MonotonicNs(at.max(open.event.begin.0));
            }
            self.give_out(key, told);
        }
    }

    fn give_out(&mut self, key: (u32, Span), told: &mut impl Told) {
        let Some(Open { event, meetings, .. }) = self.open.remove(&key) else { return };
        let ended = event.outcome != Outcome::Unfinished;
        self.books.ended += u64::from(ended);
        self.books.unfinished += u64::from(!ended);
        for meeting in meetings {
            told.event(LayerEvent::Meeting(MeetingEvent { end: event.end, ..meeting }.into()));
        }
        told.event(LayerEvent::Operation(event.into()));
    }
}

fn span_kind(kind: Kind) -> SpanKind {
    match kind {
        Kind::Internal => SpanKind::Local,
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
    }
}

/// Not longer than anybody reads.
fn words(said: &str) -> Box<str> {
    if said.len() <= WORDS_MAX {
        return said.into();
    }
    let end = (0..=WORDS_MAX).rev().find(|&end| said.is_char_boundary(end)).unwrap_or(0);
    format!("{}…", &said[..end]).into()
}

#[cfg(test)]
mod tests;
