//! What programs asked NBD servers: of a request and what it was told, one operation.
//!
//! *In*: records of requests and of answers (`kprobe-ebpf/src/nbd.rs`), in order of time; and what the tracer's own events say of
//! programs. *Out*: an operation for each request, of the kind *client*, and with it the event by which it finds the daemon's
//! ([`blkkin_wire::meeting`]: rule `nbd`, the side that asked). *Invariant*: asked = answered + withdrawn + unanswered + pending; an
//! answer ends a request of its own connection and cookie, and nothing else.
//!
//! A cookie is one request's until it is answered ("Request message", doc/proto.md of NBD). So a cookie that comes again before
//! its answer was seen tells that the answer was missed: the earlier request ends there, and says so. What has no answer when tracing
//! ends says so too. It is still an end of a request that a daemon may have heard: that it was sent is known.
//!
//! *Rejected*: to give up on a request after a time. A disk may take minutes; and what comes after the time would be an answer to
//! nothing.

mod programs;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;

use blkkin_probe_abi::counters as slot;
use blkkin_probe_abi::record::{NbdAnswered, NbdAsked};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::Source;
use blkkin_wire::meeting::{Meeting, MeetingEvent, Side};
use blkkin_wire::operation::{Note, NoteValue, OperationEvent, Outcome};

use crate::translate::nbd::{self as translate, Answer};
use programs::Programs;

/// Requests in flight that are remembered; beyond it the oldest eighth is given out as unanswered. Some 30 MiB.
const OPEN_MAX: usize = 65_536;

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
    meeting: Option<Meeting>,
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
        let meeting = translate::connection(record, &self.boot).map(|connection| Meeting {
            rule: "nbd".into(),
            connection,
            cookie: record.cookie,
        });
        let begin = operation.begin;
        let earlier = self.open.insert((record.socket, record.cookie), Open { operation, meeting });
        if let Some(earlier) = earlier {
            self.unanswered(earlier, begin, out);
        }
    }

    /// An answer came, or a request was not sent after all.
    pub fn answered(&mut self, record: &NbdAnswered, out: &mut Vec<LayerEvent>) {
        self.books.recorded += 1;
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
            give_out(open, at, out);
        }
    }

    /// Nothing more will be read.
    pub fn finish(&mut self, now: MonotonicNs, out: &mut Vec<LayerEvent>) {
        self.cut(now, |_| true, out);
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
        self.cut(now, |open| open.operation.begin <= until, out);
        self.books.no_room += self.books.unanswered - before;
    }

    /// Gives out those that have no answer, the oldest first.
    fn cut(&mut self, at: MonotonicNs, which: impl Fn(&Open) -> bool, out: &mut Vec<LayerEvent>) {
        let mut cut: Vec<Open> = self.open.extract_if(|_, open| which(open)).map(|(_, open)| open).collect();
        cut.sort_by_key(|open| (open.operation.begin, open.operation.span));
        cut.into_iter().for_each(|open| self.unanswered(open, at, out));
    }

    fn unanswered(&mut self, mut open: Open, at: MonotonicNs, out: &mut Vec<LayerEvent>) {
        self.books.unanswered += 1;
        open.operation.outcome = Outcome::Unfinished;
        open.operation.notes.push(text(at, "nbd.reply", "none was seen"));
        give_out(open, at, out);
    }
}

fn give_out(open: Open, at: MonotonicNs, out: &mut Vec<LayerEvent>) {
    let Open { mut operation, meeting } = open;
    operation.end = at.max(operation.begin);
    if let Some(meeting) = meeting {
        let met = MeetingEvent {
            span: operation.span,
            root: operation.span,
            side: Side::Asked,
            meeting,
            // "A client may use a cookie again" once it was answered.
            unique: false,
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
