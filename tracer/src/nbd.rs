//! What programs asked NBD servers: of a request and what it was told, one operation.
//!
//! *In*: records of requests and of answers (`kprobe-ebpf/src/nbd.rs`), in order of time; and what the tracer's own events say of
//! programs. *Out*: an operation for each request, of the kind *client*, and with it the event by which it finds the daemon's
//! ([`blkkin_wire::meeting`]: rule `nbd`, the side that asked). *Invariant*: asked = answered + withdrawn + unanswered + pending; an
//! answer ends a request of its own connection and cookie, and nothing else.
//!
//! A cookie is one request's until it is answered ("Request message", doc/proto.md of NBD). So a cookie that comes again before
//! its answer was seen tells that the answer was missed: the earlier request ends there, and says so. What has no answer when tracing
//! ends, or when the connection does, says so too. It is still an end of a request that a daemon may have heard: that it was sent is
//! known.
//!
//! What TCP sends once more is noted (`nbd.resent`: when, and how often) on each request whose bytes it carries, by their place in the stream. It
//! is the client's own sending alone: of an answer that was sent twice the server's kernel knows.
//!
//! *Rejected*: to give up on a request after a time. A disk may take minutes; and what comes after the time would be an answer to
//! nothing.

mod programs;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use blkkin_probe_abi::counters as slot;
use blkkin_probe_abi::record::{NbdAnswered, NbdAsked, NbdResent};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::Source;
use blkkin_wire::meeting::{Meeting, MeetingEvent, Side};
use blkkin_wire::operation::{Note, NoteValue, OperationEvent, Outcome};

use crate::translate::nbd::{self as translate, Answer};
use programs::Programs;

/// Requests in flight that are remembered; beyond it the oldest eighth is given out as unanswered. Some 30 MiB.
const OPEN_MAX: usize = 65_536;
/// What is said of a request that was sent once more: when, and how often in all.
const RESENT: &str = "nbd.resent";
/// Of the moments so many at the most: TCP gives up after 15 by default (tcp_retries2).
const RESENT_MAX: usize = 16;

/// What is said of a request whose answer may have come.
const UNSEEN: (Outcome, &str) = (Outcome::Unfinished, "none was seen");

/// What became of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NbdBooks {
    /// Requests that were given to a socket, but for those that say farewell.
    pub asked: u64,
    /// Of these, those whose answer was seen.
    pub answered: u64,
    /// Those that the socket did not take: the client may have come again with them.
    pub withdrawn: u64,
    /// Those of which no answer was seen, as far as they were given out.
    pub unanswered: u64,
    /// Of these, those given out because too many were in flight.
    pub no_room: u64,
    /// Of these, those whose connection ended first.
    pub cut_off: u64,
    /// Segments that TCP sent once more with bytes of requests in flight; and those with none.
    pub resent: u64,
    /// See above.
    pub resent_others: u64,
    /// Answers to requests that were not seen.
    pub strangers: u64,
    /// Records that were due, and those for which the rings had no room, as the kernel side counted; and those that were read.
    pub fired: u64,
    /// See above.
    pub dropped: u64,
    /// See above.
    pub recorded: u64,
    /// Buffers with a part of a header, or more behind what was read.
    pub cut: u64,
    /// Requests, if they were some, where data were due.
    pub in_data: u64,
    /// Requests with extended headers: they are not followed.
    pub extended: u64,
}

/// The books as they were of late, for who watches.
#[derive(Clone, Debug, Default)]
pub struct Asking(Arc<Mutex<NbdBooks>>);

impl Asking {
    /// As they were at most 50 ms ago.
    pub fn books(&self) -> NbdBooks {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn show(&self, books: NbdBooks) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = books;
    }
}

/// The table.
pub struct Requests {
    source: Source,
    /// As the kernel writes it: a part of the name of a Unix connection.
    boot: String,
    /// By socket and cookie.
    open: HashMap<(u64, u64), Open>,
    programs: Programs,
    books: NbdBooks,
}

struct Open {
    operation: OperationEvent,
    /// Its name, and whether no other has it.
    meeting: Option<(Meeting, bool)>,
    /// Its bytes in the stream of its connection; empty where that is not known.
    bytes: Range<u64>,
    /// How often some of them were sent once more.
    resent: usize,
}

impl Requests {
    /// Of this start.
    pub fn new(source: Source) -> Requests {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let (open, programs) = (HashMap::new(), Programs::default());
        Requests { source, boot: boot.trim_end().to_owned(), open, programs, books: NbdBooks::default() }
    }

    /// Hears of programs.
    pub fn look(&mut self, event: &LayerEvent) {
        self.programs.look(event);
    }

    /// A request was given to a socket.
    pub fn asked(&mut self, record: &NbdAsked, out: &mut Vec<LayerEvent>) {
        self.books.recorded += 1;
        let trace = self.source.trace_id(blkkin_wire::ids::SpanId(record.span));
        let operation = translate::operation(record, trace, self.programs.name(record.task));
        if translate::is_farewell(record) {
            // The protocol knows no answer to it.
            return out.push(LayerEvent::Operation(operation.into()));
        }
        self.books.asked += 1;
        if self.open.len() >= OPEN_MAX {
            self.make_room(operation.begin, out);
        }
        let (begin, bytes) = (operation.begin, translate::bytes(record));
        let open = Open { operation, meeting: translate::meeting(record, &self.boot), bytes, resent: 0 };
        let earlier = self.open.insert((record.socket, record.cookie), open);
        if let Some(earlier) = earlier {
            self.unanswered(earlier, begin, UNSEEN, out);
        }
    }

    /// An answer came, or a request was not sent after all.
    pub fn answered(&mut self, record: &NbdAnswered, out: &mut Vec<LayerEvent>) {
        self.books.recorded += 1;
        if let Some(errno) = translate::end(record) {
            return self.cut_off(record, errno, out);
        }
        let key = (record.socket, record.cookie);
        let Some(open) = self.open.get_mut(&key) else {
            self.books.strangers += 1;
            return;
        };
        let at = MonotonicNs(record.header.time_ns);
        match translate::answer(record) {
            Answer::Withdrawn => {
                self.books.withdrawn += 1;
                self.open.remove(&key);
                return;
            }
            Answer::Done => {}
            Answer::Failed(errno) => open.operation.outcome = Outcome::Failed(errno),
            Answer::FailedSomehow { last } => {
                // Which errno lies in a buffer of its own.
                open.operation.outcome = Outcome::Failed(libc::EIO.unsigned_abs());
                open.operation.notes.push(text(at, "nbd.error", "in a chunk of its own: EIO stands for any"));
                if !last {
                    return;
                }
            }
        }
        if let Some(open) = self.open.remove(&key) {
            self.books.answered += 1;
            give_out(open, at, false, out);
        }
    }

    /// Some bytes were sent once more.
    pub fn resent(&mut self, record: &NbdResent) {
        self.books.recorded += 1;
        let (mut ours, at) = (false, MonotonicNs(record.header.time_ns));
        for (_, open) in self.open.iter_mut().filter(|((socket, _), _)| *socket == record.socket) {
            if open.bytes.start.max(record.from) >= open.bytes.end.min(record.to) {
                continue;
            }
            ours = true;
            open.resent += 1;
            if open.resent <= RESENT_MAX {
                open.operation.notes.push(Note { at, key: RESENT.into(), value: NoteValue::Moment });
            }
        }
        *(if ours { &mut self.books.resent } else { &mut self.books.resent_others }) += 1;
    }

    /// The connection is no more, and what was asked on it has no answer.
    fn cut_off(&mut self, record: &NbdAnswered, errno: u32, out: &mut Vec<LayerEvent>) {
        let (at, before) = (MonotonicNs(record.header.time_ns), self.books.unanswered);
        let why = match errno {
            0 => "none: its connection was closed first",
            _ => "none: its connection failed first",
        };
        let outcome = if errno == 0 { Outcome::Unfinished } else { Outcome::Failed(errno) };
        self.cut(at, |socket, _| socket == record.socket, (outcome, why), out);
        self.books.cut_off += self.books.unanswered - before;
    }

    /// Nothing more will be read.
    pub fn finish(&mut self, now: MonotonicNs, out: &mut Vec<LayerEvent>) {
        self.cut(now, |_, _| true, UNSEEN, out);
    }

    /// What became of them, with what the kernel side counted.
    pub fn books(&self, kernel: &[u64; slot::COUNTERS]) -> NbdBooks {
        NbdBooks {
            fired: kernel[slot::NBD_FIRED],
            dropped: kernel[slot::NBD_DROPPED],
            cut: kernel[slot::NBD_CUT],
            in_data: kernel[slot::NBD_IN_DATA],
            extended: kernel[slot::NBD_EXTENDED],
            ..self.books
        }
    }

    fn make_room(&mut self, now: MonotonicNs, out: &mut Vec<LayerEvent>) {
        let mut begins: Vec<_> = self.open.values().map(|open| open.operation.begin).collect();
        let (_, until, _) = begins.select_nth_unstable(OPEN_MAX / 8);
        let until = *until;
        let before = self.books.unanswered;
        self.cut(now, |_, open| open.operation.begin <= until, UNSEEN, out);
        self.books.no_room += self.books.unanswered - before;
    }

    /// Gives out those that have no answer, the oldest first.
    fn cut(
        &mut self,
        at: MonotonicNs,
        which: impl Fn(u64, &Open) -> bool,
        why: (Outcome, &str),
        out: &mut Vec<LayerEvent>,
    ) {
        let cut = self.open.extract_if(|(socket, _), open| which(*socket, open));
        let mut cut: Vec<Open> = cut.map(|(_, open)| open).collect();
        cut.sort_by_key(|open| (open.operation.begin, open.operation.span));
        cut.into_iter().for_each(|open| self.unanswered(open, at, why, out));
    }

    fn unanswered(
        &mut self,
        mut open: Open,
        at: MonotonicNs,
        (outcome, why): (Outcome, &str),
        out: &mut Vec<LayerEvent>,
    ) {
        self.books.unanswered += 1;
        open.operation.outcome = outcome;
        open.operation.notes.push(text(at, "nbd.reply", why));
        give_out(open, at, true, out);
    }
}

fn give_out(open: Open, at: MonotonicNs, unanswered: bool, out: &mut Vec<LayerEvent>) {
    let Open { mut operation, meeting, resent, .. } = open;
    if resent > 0 {
        let value = NoteValue::Number(resent as i64);
        operation.notes.push(Note { at, key: RESENT.into(), value });
    }
    operation.end = at.max(operation.begin);
    if let Some((meeting, unique)) = meeting {
        let met = MeetingEvent {
            span: operation.span,
            root: operation.span,
            side: Side::Asked,
            meeting,
            unique,
            unanswered,
            begin: operation.begin,
            end: operation.end,
        };
        out.push(LayerEvent::Meeting(met.into()));
    }
    out.push(LayerEvent::Operation(operation.into()));
}

fn text(at: MonotonicNs, key: &str, value: &str) -> Note {
    Note { at, key: key.into(), value: NoteValue::Text(value.into()) }
}
