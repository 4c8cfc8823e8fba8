//! What daemons' operations were, and which of them each thread works for.
//!
//! *In*: facts ([`crate::facts`]), in order of time, and what was lost between them. *Out*: an operation when it has ended, or when it is known that its end will not come;
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
//! - *A thread or a process is gone.* Its number goes to others. That is heard from the kernel's side, maybe after the first words of
//!   the next; so what was entered before a thread was forked is not its own, whoever had its number then.
//!
//! *Rejected*: "the operation whose time encloses the call's" (a pool of threads has a hundred such); to keep a thread's stack over
//! a loss if the next event fits it (that event may be of the same operation, called again).
//!
//! # When an operation has ended
//!
//! When it says so. Who answers somebody, maybe on another machine, knows its own end too late: it has sent the answer before, and who asked may
//! have it before that is said. A moment of the name [`ANSWERS`], said before the answer is sent, is that end towards the other: no
//! later than the answer left. Without one the operation's end stands for it, and two clocks are then bounded by it too narrowly wherever the
//! daemon had to wait for its CPU in between. Of a process that is gone, what had not ended is given out as unfinished, with the process's end as its own; so
//! are those that have been open for longest where there are too many.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SpanStatus};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::{Pid, SpanId, Tid, TraceId};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::SpanKind;

use crate::facts::{self, Fact, Kind, Where};

/// Operations open at once; beyond it an eighth of them is given out, those that began first. Some 40 MiB if each has a few notes.
const OPEN_MAX: usize = 65_536;
/// Threads that work for something.
const THREADS_MAX: usize = 65_536;
/// Operations that a thread has entered and not left.
const DEPTH_MAX: usize = 32;
/// Notes of one operation, and bytes of one's words.
const NOTES_MAX: usize = 64;
const WORDS_MAX: usize = 1_024;

/// What who answers a meeting says before its answer is sent.
pub const ANSWERS: &str = "answers";

/// A process, as it sees itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Its name space of processes, by its inode; 0 is the initial one.
    pub pid_ns: u64,
    /// Its number there.
    pub pid: u32,
}

/// A thread, as it sees itself. Numbers of two name spaces have nothing to do with each other: whoever compares them without the
/// name space takes a container's thread for somebody of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// Its name space of processes, by its inode; 0 is the initial one.
    pub pid_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

impl Thread {
    /// One of the initial name space.
    pub const fn initial(pid: u32, tid: u32) -> Thread {
        Thread { pid_ns: 0, pid, tid }
    }

    /// Its process.
    pub const fn process(self) -> Process {
        Process { pid_ns: self.pid_ns, pid: self.pid }
    }

    fn of(at: &Where<'_>) -> Thread {
        Thread { pid_ns: at.pid_ns, pid: at.vpid, tid: at.vtid }
    }
}

/// What a thread works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Above {
    /// The trace.
    pub trace: TraceId,
    /// The operation.
    pub span: SpanId,
    /// When the thread entered it.
    pub since: MonotonicNs,
}

/// Hears what comes of facts, in order of time.
pub trait Told {
    /// An operation of this process is over, or was one end of a request.
    fn event(&mut self, process: Process, event: LayerEvent);
    /// An operation of this node has begun: calls may say that they were made for it.
    fn began(&mut self, at: MonotonicNs, trace: TraceId, span: SpanId);
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
    /// Of these given out because too many were open.
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
    open: HashMap<(Process, u64), Open>,
    /// What each has entered and not left; of what is not known to be open only that it was entered.
    threads: HashMap<Thread, Vec<(u64, Option<Above>)>>,
    /// Nothing that is said before is believed of threads.
    doubtful_until: u64,
    now: u64,
    books: Books,
}

#[derive(Debug)]
struct Open {
    event: DaemonSpanEvent,
    root: SpanId,
    meetings: Vec<RpcEndpointEvent>,
}

impl Open {
    fn above(&self) -> Above {
        Above { trace: self.event.trace, span: self.event.span, since: self.event.begin }
    }
}

impl Above {
    fn since(self, at: u64) -> Above {
        Above { since: MonotonicNs(at), ..self }
    }
}

impl Operations {
    /// Takes the next fact in.
    pub fn take(&mut self, at: &Where<'_>, fact: &Fact<'_>, told: &mut impl Told) {
        self.now = self.now.max(at.time_ns);
        let (time, thread) = (at.time_ns, Thread::of(at));
        match fact {
            Fact::Begin { span, on, .. } => {
                let above = self.begin(at, fact, told).map(|above| above.since(time));
                if *on {
                    self.enter(time, thread, *span, above, told);
                }
            }
            Fact::End { span, status } => self.end(time, thread, *span, *status, told),
            Fact::Enter { span } => {
                let above = self.open.get(&(thread.process(), *span)).map(|open| open.above().since(time));
                self.books.strangers += u64::from(above.is_none());
                self.enter(time, thread, *span, above, told);
            }
            Fact::Leave { span } => self.leave(time, thread, *span, told),
            Fact::Event { span, name } => {
                if name == ANSWERS {
                    self.answers(time, thread, *span, told);
                }
                self.note(at, *span, name, AnnotationValue::Event);
            }
            Fact::Text { span, key, value } => self.note(at, *span, key, AnnotationValue::Text(words(value))),
            Fact::Number { span, key, value } => self.note(at, *span, key, AnnotationValue::Number(*value)),
            Fact::Meeting { span, side, unique, rule, connection, cookie } => {
                let meeting =
                    RpcKey { protocol: words(rule), connection: words(connection), cookie: *cookie };
                self.meeting(thread, *span, *side == facts::Side::Answered, *unique, meeting);
            }
        }
    }

    /// So many events were lost, between these times: of whose, nobody knows.
    pub fn lost(&mut self, from: u64, until: u64, events: u64, told: &mut impl Told) {
        self.books.lost += events;
        self.books.lost_late += u64::from(from < self.now);
        self.doubtful_until = self.doubtful_until.max(until);
        self.threads.clear();
        told.nobody(MonotonicNs(from));
    }

    /// What is open was known by events alone of which some were lost: its end may be among them. It is given out without one.
    pub fn interrupted(&mut self, at: u64, told: &mut impl Told) {
        self.cut(at, |_, _| true, told);
    }

    /// The thread has ended, and another may get its number: whatever it had entered.
    pub fn ended(&mut self, thread: Thread, at: u64, told: &mut impl Told) {
        if self.threads.remove(&thread).is_some() {
            told.works(MonotonicNs(at.max(self.now)), thread, None);
        }
    }

    /// The process has ended: so have its threads, and no end of its operations will be heard.
    pub fn gone(&mut self, process: Process, at: u64, told: &mut impl Told) {
        self.now = self.now.max(at);
        self.threads.retain(|thread, _| {
            let stays = thread.process() != process;
            if !stays {
                told.works(MonotonicNs(at), *thread, None);
            }
            stays
        });
        self.cut(at, |key, _| key.0 == process, told);
    }

    /// Nothing more will come.
    pub fn finish(&mut self, at: u64, told: &mut impl Told) {
        self.cut(at.max(self.now), |_, _| true, told);
        self.threads.clear();
    }

    /// What became of facts.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Operations that have not ended.
    pub fn pending(&self) -> usize {
        self.open.len()
    }

    /// A new one; none if it is open already.
    fn begin(&mut self, at: &Where<'_>, fact: &Fact<'_>, told: &mut impl Told) -> Option<Above> {
        let &Fact::Begin {
            trace_hi,
            trace_lo,
            span,
            parent,
            kind,
            kept_per_million,
            ref name,
            ref service,
            ..
        } = fact
        else {
            return None;
        };
        let thread = Thread::of(at);
        if self.open.len() >= OPEN_MAX {
            self.make_room(told);
        }
        let above = (parent != 0).then(|| self.open.get(&(thread.process(), parent))).flatten();
        let root = above.map_or(SpanId(span), |above| above.root);
        let said = TraceId(u128::from(trace_hi) << 64 | u128::from(trace_lo));
        // Who says no trace is in that of what it is part of, or begins one.
        let own = || above.map_or(TraceId(span.into()), |above| above.event.trace);
        let trace = if said.0 == 0 { own() } else { said };
        let continued = parent != 0 && above.is_none();
        let Entry::Vacant(place) = self.open.entry((thread.process(), span)) else {
            self.books.twice += 1;
            return None;
        };
        self.books.begun += 1;
        let event = DaemonSpanEvent {
            span: SpanId(span),
            parent: (parent != 0).then_some(SpanId(parent)),
            parent_is_remote: continued,
            trace,
            kind: span_kind(kind),
            name: words(name),
            service: words(if service.is_empty() { &at.procname } else { service }),
            begin: MonotonicNs(at.time_ns),
            end: MonotonicNs(at.time_ns),
            pid: Pid(thread.pid),
            tid: Tid(thread.tid),
            status: SpanStatus::Ok,
            sample_rate: kept_per_million,
            annotations: Vec::new(),
        };
        told.began(event.begin, event.trace, event.span);
        Some(place.insert(Open { event, root, meetings: Vec::new() }).above())
    }

    /// Gives out those that have been open for longest.
    fn make_room(&mut self, told: &mut impl Told) {
        let mut begins: Vec<_> = self.open.values().map(|open| open.event.begin).collect();
        let (_, until, _) = begins.select_nth_unstable(OPEN_MAX / 8);
        let until = *until;
        let before = self.books.unfinished;
        self.cut(self.now, |_, open| open.event.begin < until, told);
        self.books.no_room += self.books.unfinished - before;
    }

    fn end(&mut self, at: u64, thread: Thread, span: u64, status: i32, told: &mut impl Told) {
        self.leave(at, thread, span, told);
        let key = (thread.process(), span);
        let Some(open) = self.open.get_mut(&key) else {
            self.books.strangers += 1;
            return;
        };
        open.event.end = MonotonicNs(at.max(open.event.begin.0));
        if status != 0 {
            open.event.status = SpanStatus::Error(status.unsigned_abs());
        }
        self.give_out(key, told);
    }

    /// Also of what is not known: what it had entered before is not what it works for now.
    fn enter(&mut self, at: u64, thread: Thread, span: u64, above: Option<Above>, told: &mut impl Told) {
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

    fn leave(&mut self, at: u64, thread: Thread, span: u64, told: &mut impl Told) {
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

    fn note(&mut self, at: &Where<'_>, span: u64, key: &str, value: AnnotationValue) {
        let Some(open) = self.open.get_mut(&(Thread::of(at).process(), span)) else {
            self.books.strangers += 1;
            return;
        };
        // blkin's spans say what they are by these words (Zipkin's own).
        if value == AnnotationValue::Event && open.event.kind == SpanKind::Local {
            match key {
                "sr" | "ss" => open.event.kind = SpanKind::Server,
                "cs" | "cr" => open.event.kind = SpanKind::Client,
                _ => {}
            }
        }
        if open.event.annotations.len() < NOTES_MAX {
            open.event.annotations.push(Annotation { time: MonotonicNs(at.time_ns), key: words(key), value });
        } else {
            self.books.notes_dropped += 1;
        }
    }

    fn meeting(&mut self, thread: Thread, span: u64, answered: bool, unique: bool, meeting: RpcKey) {
        let Some(open) = self.open.get_mut(&(thread.process(), span)) else {
            self.books.strangers += 1;
            return;
        };
        if open.meetings.len() >= NOTES_MAX {
            self.books.notes_dropped += 1;
            return;
        }
        open.meetings.push(RpcEndpointEvent {
            span: open.event.span,
            root: open.root,
            side: if answered { RpcSide::Server } else { RpcSide::Client },
            key: meeting,
            unique,
            no_reply: false,
            begin: open.event.begin,
            // Known when the operation has ended.
            end: open.event.begin,
        });
    }

    /// Its answer may be there from now on: so the end towards who asked is told, and not told again.
    fn answers(&mut self, at: u64, thread: Thread, span: u64, told: &mut impl Told) {
        let process = thread.process();
        let Some(open) = self.open.get_mut(&(process, span)) else { return };
        for met in open.meetings.extract_if(.., |met| met.side == RpcSide::Server) {
            let end = MonotonicNs(at.max(met.begin.0));
            told.event(process, LayerEvent::RpcEndpoint(RpcEndpointEvent { end, ..met }.into()));
        }
    }

    /// Gives out what has no end.
    fn cut(&mut self, at: u64, which: impl Fn(&(Process, u64), &Open) -> bool, told: &mut impl Told) {
        let mut all: Vec<_> =
            self.open.iter().filter(|(key, open)| which(key, open)).map(|(key, _)| *key).collect();
        // Parts first, as if they had ended one after another.
        all.sort_unstable_by_key(|key| std::cmp::Reverse((self.open[key].event.begin, key.1)));
        for key in all {
            if let Some(open) = self.open.get_mut(&key) {
                open.event.status = SpanStatus::Unfinished;
                open.event.end = MonotonicNs(at.max(open.event.begin.0));
            }
            self.give_out(key, told);
        }
    }

    fn give_out(&mut self, key: (Process, u64), told: &mut impl Told) {
        let Some(Open { event, meetings, .. }) = self.open.remove(&key) else { return };
        let ended = event.status != SpanStatus::Unfinished;
        self.books.ended += u64::from(ended);
        self.books.unfinished += u64::from(!ended);
        for meeting in meetings {
            let unanswered = !ended && meeting.side == RpcSide::Client;
            let meeting = RpcEndpointEvent { end: event.end, no_reply: unanswered, ..meeting };
            told.event(key.0, LayerEvent::RpcEndpoint(meeting.into()));
        }
        told.event(key.0, LayerEvent::DaemonSpan(event.into()));
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
pub(crate) mod tests;
