//! Follows one session: its streams, their packets, their events in order of time.
//!
//! In: the relay's answers. Out: a [`View`] for each event, and counters. A stream is asked for its next packet when the one
//! before has been given out, so of each stream one packet is held (its content, not its padding), whatever the relay has.
//! Streams of a process with buffers of its own that began and ended between two rounds are never heard of: the relay
//! forgets them (lttng-relayd, `make_viewer_streams`), and nothing counts their events.
//!
//! Invariant: an event goes out once, in order of time unless it is counted as late; whatever a stream lost is in
//! [`Counts`], and a packet that cannot be read is there too.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::connection::{Connection, LiveError};
use super::protocol::{News, Next, Session, Stream};
use crate::clock::{Conversion, Here};
use crate::ctf::metadata::{MetadataError, Trace};
use crate::ctf::packet::{Decoder, Event, Losses, PacketError, PacketHead, Place, Since};
use crate::merge::Merge;
use crate::view::{Gap, View};

mod order;
mod packets;

/// Troubles that are kept until somebody takes them; more are only counted.
const TROUBLES_MAX: usize = 64;

/// How long a relay may take to name a stream again: it does not while it holds a reader of it that it has lost.
const NAMED_WITHIN: Duration = Duration::from_secs(5);

/// How a session is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// From the oldest packet that the relay still has; or else from now on.
    pub from_begin: bool,
    /// How long others are held up by a stream that says nothing.
    pub wait_max: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { from_begin: true, wait_max: Duration::from_millis(200) }
    }
}

/// What was read, and what was not.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Events given out.
    pub events: u64,
    /// Of these, behind a later one: their stream had said nothing for too long, or began before it was known.
    pub late: u64,
    /// Packets with these events.
    pub packets: u64,
    /// Packets of which a part could not be read.
    pub broken: u64,
    /// Packets that the relay had already written over when they were asked for.
    pub gone: u64,
    /// What streams say that they have lost. Packets that are gone are among the packets lost.
    pub lost: Losses,
}

impl Counts {
    /// Both together: one session was followed by another.
    #[must_use]
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            events: self.events + other.events,
            late: self.late + other.late,
            packets: self.packets + other.packets,
            broken: self.broken + other.broken,
            gone: self.gone + other.gone,
            lost: self.lost.and(other.lost),
        }
    }
}

/// What is wrong with a part of a session.
#[derive(Debug)]
pub struct Trouble {
    /// The stream, as path and channel.
    pub stream: String,
    /// What is wrong with it.
    pub what: String,
}

/// A trace of the session: one for each user, or for each process.
struct LiveTrace {
    /// Where the relay keeps it: this names it over connections.
    path: String,
    metadata: Option<u64>,
    trace: Trace,
    conversion: Option<Conversion>,
    refused: bool,
}

/// A stream of packets.
struct LiveStream {
    id: u64,
    trace: usize,
    name: (String, String),
    decoder: Decoder,
    counted: Losses,
    /// Packets up to here were read before, over an earlier connection.
    seen: u64,
    /// The relay has named it over this connection.
    listed: bool,
    /// The relay has let go of it: what is here is the last of it.
    dropped: bool,
    /// Where the packet in `bytes` ends.
    end: u64,
    bytes: Vec<u8>,
    head: PacketHead,
    place: Place,
    event: Event,
    asked: bool,
    over: bool,
    /// When a packet or another beacon than the last came.
    heard: Instant,
    beacon: u64,
    /// Its packet cannot be read yet: until when the stream was known before it, and since when it is here.
    waits: Option<(u64, Instant)>,
}

/// What one round brought.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Round {
    /// Events given out.
    pub events: u64,
    /// Packets that came.
    pub packets: u64,
    /// The session is over: nothing will come any more.
    pub over: bool,
    /// It was over before the relay named all streams again: what it still had of them is gone.
    pub cut_short: bool,
}

/// A session that is read, over one connection after another.
pub struct Reader {
    connection: Option<Connection>,
    session: Session,
    settings: Settings,
    here: Here,
    traces: Vec<LiveTrace>,
    streams: Vec<LiveStream>,
    merge: Merge,
    held_since: Option<Instant>,
    /// Lost, and not told yet.
    gap: Option<Gap>,
    attached: Instant,
    answers: Vec<(Next, News)>,
    scratch: Vec<u8>,
    counts: Counts,
    last_ns: Option<i64>,
    troubles: VecDeque<Trouble>,
}

impl Reader {
    /// Of the session called `name`, not attached to it yet.
    pub fn new(name: &str, settings: Settings, here: Here) -> Self {
        let name = name.to_owned();
        let session = Session { id: 0, live_timer_us: 0, clients: 0, streams: 0, host: String::new(), name };
        Self {
            connection: None,
            session,
            settings,
            here,
            traces: Vec::new(),
            streams: Vec::new(),
            merge: Merge::default(),
            held_since: None,
            gap: None,
            attached: Instant::now(),
            answers: Vec::new(),
            scratch: Vec::new(),
            counts: Counts::default(),
            last_ns: None,
            troubles: VecDeque::new(),
        }
    }

    /// Attaches to the newest session of the name. Over a later connection reading goes on where it stopped, from what the
    /// relay still has: only the first time is it a matter of choice.
    pub fn attach(&mut self, mut connection: Connection) -> Result<(), LiveError> {
        let found = connection.sessions()?;
        let name = self.session.name.clone();
        let newest = found.iter().filter(|session| session.name == name).max_by_key(|session| session.id);
        let session = newest.ok_or_else(|| no_session(&name, &found))?.clone();
        let again = self.session.id != 0 || !self.streams.is_empty();
        let streams = connection.attach(&session, self.settings.from_begin || again)?;
        (self.session, self.connection) = (session, Some(connection));
        self.attached = Instant::now();
        let added = self.add(streams);
        if added.is_err() {
            self.detach();
        }
        added
    }

    /// Lets go of the connection; what is here stays, and is given when its turn comes.
    pub fn detach(&mut self) {
        self.connection = None;
        for stream in &mut self.streams {
            stream.seen = stream.seen.max(stream.end);
            stream.listed = false;
        }
        for trace in &mut self.traces {
            trace.metadata = None;
        }
    }

    /// True while there is a connection.
    pub fn is_attached(&self) -> bool {
        self.connection.is_some()
    }

    /// Streams that the relay has not named again are over: they ended while there was no connection.
    fn forget(&mut self) {
        for n in 0..self.streams.len() {
            if !self.streams[n].listed && !self.streams[n].dropped {
                self.streams[n].dropped = true;
                if self.streams[n].asked {
                    self.close(n);
                }
            }
        }
    }

    /// The session, as the relay lists it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What was read so far, over all connections.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What is wrong with parts of the session, since the last time it was asked for.
    pub fn troubles(&mut self) -> impl Iterator<Item = Trouble> + '_ {
        self.troubles.drain(..)
    }

    /// The largest error of the times that were converted; 0 where clocks are CLOCK_MONOTONIC.
    pub fn clock_error(&self) -> Duration {
        let errors = self.traces.iter().filter_map(|trace| trace.conversion).map(|converted| converted.error);
        errors.max().unwrap_or_default()
    }

    /// What streams have lost, each by path and channel.
    pub fn losses(&self) -> impl Iterator<Item = (&(String, String), Losses)> {
        self.streams.iter().map(|stream| (&stream.name, stream.decoder.losses))
    }

    /// Streams of which nothing was heard for `long`, while others spoke: their rings are stuck.
    pub fn silent(&self, long: Duration) -> impl Iterator<Item = &(String, String)> {
        let open = || self.streams.iter().filter(|stream| !stream.over);
        let others_speak = open().any(|stream| stream.heard.elapsed() < long / 2);
        open().filter(move |stream| others_speak && stream.heard.elapsed() >= long).map(|stream| &stream.name)
    }

    /// All events before are given out, as far as the streams that are known can say; none while there is no stream.
    pub fn known_until(&mut self) -> Option<i64> {
        let open = self.streams.iter().any(|stream| !stream.over);
        open.then(|| self.merge.bound()).filter(|&bound| bound != i64::MIN)
    }

    /// What was found to be lost since the last event that was given out.
    pub fn take_gap(&mut self) -> Option<Gap> {
        self.gap.take()
    }

    /// Bytes of packets that are held.
    pub fn bytes_held(&self) -> usize {
        self.streams.iter().map(|stream| stream.bytes.capacity()).sum()
    }

    /// Asks every stream that has nothing here for more, and gives out what may go.
    pub fn round(&mut self, out: &mut impl FnMut(&View<'_>)) -> Result<Round, LiveError> {
        let before = self.counts;
        self.begin_those_that_wait()?;
        let asked: Vec<usize> =
            (0..self.streams.len()).filter(|&n| self.streams[n].asked && self.streams[n].listed).collect();
        let ids: Vec<u64> = asked.iter().map(|&n| self.streams[n].id).collect();
        let mut answers = std::mem::take(&mut self.answers);
        answers.clear();
        self.connection()?.next(&ids, &mut answers)?;
        let mut news = News::default();
        for (&n, (next, fresh)) in asked.iter().zip(&answers) {
            news.streams |= fresh.streams;
            if fresh.metadata {
                self.more_metadata(self.streams[n].trace)?;
            }
            self.answer(n, next)?;
        }
        self.answers = answers;
        let open = self.streams.iter().any(|stream| stream.listed && !stream.over);
        let missing = self.streams.iter().any(|stream| !stream.listed && !stream.dropped);
        let mut over = false;
        // Without an open stream nothing says that there are new ones.
        if news.streams || !open || missing {
            match self.new_streams()? {
                Some(streams) => self.add(streams)?,
                None => over = !open,
            }
        }
        if missing && self.attached.elapsed() >= NAMED_WITHIN {
            self.forget();
        }
        self.give(out);
        let counts = self.counts;
        let (events, packets) = (counts.events - before.events, counts.packets - before.packets);
        Ok(Round { events, packets, over, cut_short: over && missing })
    }

    /// Gives out all that is here, for nothing more will come.
    pub fn finish(&mut self, out: &mut impl FnMut(&View<'_>)) {
        self.detach();
        for n in 0..self.streams.len() {
            self.streams[n].dropped = true;
            if self.streams[n].waits.take().is_some() {
                self.broken(n, &PacketError::NoMetadata);
            }
            if self.streams[n].asked {
                self.close(n);
            }
        }
        self.give(out);
    }

    fn connection(&mut self) -> Result<&mut Connection, LiveError> {
        self.connection.as_mut().ok_or_else(not_attached)
    }

    fn new_streams(&mut self) -> Result<Option<Vec<Stream>>, LiveError> {
        let session = self.session.id;
        self.connection()?.new_streams(session)
    }

    fn add(&mut self, streams: Vec<Stream>) -> Result<(), LiveError> {
        for stream in streams {
            let known = self.traces.iter().position(|trace| trace.path == stream.path);
            let trace = known.unwrap_or_else(|| {
                let (path, trace) = (stream.path.clone(), Trace::default());
                self.traces.push(LiveTrace { path, metadata: None, trace, conversion: None, refused: false });
                self.traces.len() - 1
            });
            if stream.is_metadata {
                self.metadata_again(trace, stream.id)?;
                continue;
            }
            let name = (stream.path, stream.channel);
            if let Some(known) = self.streams.iter_mut().find(|known| known.name == name) {
                (known.id, known.heard, known.listed) = (stream.id, Instant::now(), true);
                continue;
            }
            let since = if self.settings.from_begin { Since::Begin } else { Since::Attached };
            self.merge.add(i64::MIN);
            self.streams.push(LiveStream {
                id: stream.id,
                trace,
                name,
                counted: Losses::default(),
                decoder: Decoder::new(since),
                seen: 0,
                listed: true,
                dropped: false,
                end: 0,
                bytes: Vec::new(),
                head: PacketHead::default(),
                place: Place::default(),
                event: Event::default(),
                asked: true,
                over: false,
                heard: Instant::now(),
                beacon: 0,
                waits: None,
            });
        }
        (0..self.traces.len()).try_for_each(|trace| self.more_metadata(trace))
    }

    /// A relay sends a reader all of the metadata, also one that came back. Events that are here were decoded by what came
    /// before: it stays until as much has come again.
    fn metadata_again(&mut self, trace: usize, stream: u64) -> Result<(), LiveError> {
        let known = &mut self.traces[trace];
        known.metadata = Some(stream);
        if known.trace.text().is_empty() {
            return Ok(());
        }
        let before = std::mem::take(&mut known.trace);
        let read = self.more_metadata(trace);
        let known = &mut self.traces[trace];
        if read.is_err() || !known.trace.text().starts_with(before.text()) {
            known.trace = before;
        }
        read
    }

    /// Reads what was added to a trace's metadata.
    fn more_metadata(&mut self, trace: usize) -> Result<(), LiveError> {
        let Some(stream) = self.traces[trace].metadata else { return Ok(()) };
        loop {
            let Some(connection) = &mut self.connection else { return Ok(()) };
            connection.metadata(stream, &mut self.scratch)?;
            if self.scratch.is_empty() {
                return Ok(());
            }
            let live = &mut self.traces[trace];
            if live.refused {
                continue;
            }
            match live.trace.append(&self.scratch) {
                Ok(()) => {}
                Err(MetadataError::Ctf2) => return Err(LiveError::Ctf2(self.session.name.clone())),
                Err(error) => self.refuse(trace, &error.to_string()),
            }
        }
    }

    /// Nothing of this trace can be understood.
    fn refuse(&mut self, trace: usize, why: &str) {
        self.traces[trace].refused = true;
        for n in 0..self.streams.len() {
            if self.streams[n].trace == trace && !self.streams[n].over {
                self.trouble(n, why);
            }
        }
    }

    fn trouble(&mut self, n: usize, what: &str) {
        let (path, channel) = &self.streams[n].name;
        if self.troubles.len() < TROUBLES_MAX {
            self.troubles.push_back(Trouble { stream: format!("{path}/{channel}"), what: what.to_owned() });
        }
    }

    fn answer(&mut self, n: usize, next: &Next) -> Result<(), LiveError> {
        match next {
            Next::Packet(index) => self.fetch(n, index),
            Next::Retry => Ok(()),
            Next::Inactive(ticks) => {
                let stream = &mut self.streams[n];
                if *ticks > stream.beacon {
                    (stream.beacon, stream.heard) = (*ticks, Instant::now());
                }
                if let Some(ns) = self.ns(n, *ticks) {
                    self.merge.quiet(n, ns);
                }
                Ok(())
            }
            Next::Over => {
                self.close(n);
                Ok(())
            }
            Next::Failed(status) => Err(LiveError::Protocol(format!("an index: status {status}"))),
        }
    }

    fn close(&mut self, n: usize) {
        self.merge.close(n);
        let stream = &mut self.streams[n];
        (stream.over, stream.asked) = (true, false);
        stream.bytes = Vec::new();
    }
}

fn not_attached() -> LiveError {
    LiveError::Away { address: String::new(), error: std::io::ErrorKind::NotConnected.into() }
}

fn no_session(name: &str, found: &[Session]) -> LiveError {
    let names: Vec<&str> = found.iter().map(|session| session.name.as_str()).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    LiveError::NoSession { name: name.to_owned(), known }
}
