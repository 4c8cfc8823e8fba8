//! Follows one session: its streams, their packets, their events in order of time.
//!
//! In: the relay's answers. Out: a [`View`] for each event, and counters. A stream is asked for its next packet when the one
//! before has been given out, so of each stream one packet is held (its content, not its padding), whatever the relay has.
//! Streams of a process with buffers of its own that began and ended between two rounds are never heard of: the relay
//! forgets them (lttng-relayd, `make_viewer_streams`), and nothing counts their events.
//!
//! Invariant: an event goes out once, in order of time unless it is counted as late; whatever a stream lost is in
//! [`Counts`], and a packet that cannot be read is there too.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::connection::{Connection, LiveError, Part};
use super::protocol::{Index, News, Next, Session, Stream};
use crate::clock::{Conversion, Here};
use crate::ctf::metadata::{MetadataError, Trace};
use crate::ctf::packet::{Decoder, Event, Losses, PacketError, PacketHead, Place, Since};
use crate::merge::Merge;
use crate::view::{Gap, View};

/// Troubles that are kept until somebody takes them; more are only counted.
const TROUBLES_MAX: usize = 64;

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
    id: u64,
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
}

/// What is known of a session's streams, kept over connections: where each was read to.
#[derive(Default, Debug)]
pub struct Memory {
    streams: HashMap<(String, String), (Decoder, u64)>,
    /// What was read over all connections.
    pub counts: Counts,
    last_ns: Option<i64>,
    troubles: VecDeque<Trouble>,
}

impl Memory {
    /// What is wrong with parts of the session, since the last time it was asked for.
    pub fn troubles(&mut self) -> impl Iterator<Item = Trouble> + '_ {
        self.troubles.drain(..)
    }
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
}

/// A session that is being read.
pub struct Reader {
    connection: Connection,
    session: Session,
    settings: Settings,
    here: Here,
    traces: Vec<LiveTrace>,
    streams: Vec<LiveStream>,
    merge: Merge,
    held_since: Option<Instant>,
    /// Lost, and not told yet.
    gap: Option<Gap>,
    answers: Vec<(Next, News)>,
    scratch: Vec<u8>,
    memory: Memory,
}

impl Reader {
    /// Attaches to the newest session called `name`. `memory` says what an earlier connection has read already; it is taken
    /// if this succeeds.
    pub fn attach(
        mut connection: Connection,
        name: &str,
        settings: Settings,
        here: Here,
        memory: &mut Memory,
    ) -> Result<Self, LiveError> {
        let found = connection.sessions()?;
        let newest = found.iter().filter(|session| session.name == name).max_by_key(|session| session.id);
        let session = newest.ok_or_else(|| no_session(name, &found))?.clone();
        let streams = connection.attach(&session, settings.from_begin)?;
        let mut reader = Self {
            connection,
            session,
            settings,
            here,
            traces: Vec::new(),
            streams: Vec::new(),
            merge: Merge::default(),
            held_since: None,
            gap: None,
            answers: Vec::new(),
            scratch: Vec::new(),
            memory: std::mem::take(memory),
        };
        if let Err(error) = reader.add(streams) {
            *memory = reader.leave(&mut |_| {});
            return Err(error);
        }
        Ok(reader)
    }

    /// The session, as the relay lists it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What was read so far, over all connections.
    pub fn counts(&self) -> Counts {
        self.memory.counts
    }

    /// What is wrong with parts of the session, since the last time it was asked for.
    pub fn troubles(&mut self) -> impl Iterator<Item = Trouble> + '_ {
        self.memory.troubles()
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
        let before = self.memory.counts;
        let asked: Vec<usize> = (0..self.streams.len()).filter(|&n| self.streams[n].asked).collect();
        let ids: Vec<u64> = asked.iter().map(|&n| self.streams[n].id).collect();
        let mut answers = std::mem::take(&mut self.answers);
        answers.clear();
        self.connection.next(&ids, &mut answers)?;
        let mut news = News::default();
        for (&n, (next, fresh)) in asked.iter().zip(&answers) {
            news.streams |= fresh.streams;
            if fresh.metadata {
                self.more_metadata(self.streams[n].trace)?;
            }
            self.answer(n, next)?;
        }
        self.answers = answers;
        let open = self.streams.iter().any(|stream| !stream.over);
        let mut over = false;
        // Without an open stream nothing says that there are new ones.
        if news.streams || !open {
            match self.connection.new_streams(self.session.id)? {
                Some(streams) => self.add(streams)?,
                None => over = !open,
            }
        }
        self.give(out);
        let counts = self.memory.counts;
        let (events, packets) = (counts.events - before.events, counts.packets - before.packets);
        Ok(Round { events, packets, over })
    }

    /// Gives out all that is here, and says what an other connection needs to know to go on.
    pub fn leave(mut self, out: &mut impl FnMut(&View<'_>)) -> Memory {
        for n in 0..self.streams.len() {
            if self.streams[n].asked {
                self.merge.close(n);
            }
        }
        self.give(out);
        for stream in self.streams {
            self.memory.streams.insert(stream.name, (stream.decoder, stream.end.max(stream.seen)));
        }
        self.memory
    }

    fn add(&mut self, streams: Vec<Stream>) -> Result<(), LiveError> {
        for stream in streams {
            let known = self.traces.iter().position(|trace| trace.id == stream.trace);
            let trace = known.unwrap_or_else(|| {
                let (id, trace) = (stream.trace, Trace::default());
                self.traces.push(LiveTrace { id, metadata: None, trace, conversion: None, refused: false });
                self.traces.len() - 1
            });
            if stream.is_metadata {
                self.traces[trace].metadata = Some(stream.id);
                continue;
            }
            if self.streams.iter().any(|known| known.id == stream.id) {
                continue;
            }
            let name = (stream.path, stream.channel);
            let since = if self.settings.from_begin { Since::Begin } else { Since::Attached };
            let (decoder, seen) =
                self.memory.streams.remove(&name).unwrap_or_else(|| (Decoder::new(since), 0));
            self.merge.add(i64::MIN);
            self.streams.push(LiveStream {
                id: stream.id,
                trace,
                name,
                counted: decoder.losses,
                decoder,
                seen,
                end: 0,
                bytes: Vec::new(),
                head: PacketHead::default(),
                place: Place::default(),
                event: Event::default(),
                asked: true,
                over: false,
                heard: Instant::now(),
                beacon: 0,
            });
        }
        (0..self.traces.len()).try_for_each(|trace| self.more_metadata(trace))
    }

    /// Reads what was added to a trace's metadata.
    fn more_metadata(&mut self, trace: usize) -> Result<(), LiveError> {
        let Some(stream) = self.traces[trace].metadata else { return Ok(()) };
        loop {
            self.connection.metadata(stream, &mut self.scratch)?;
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
        if self.memory.troubles.len() < TROUBLES_MAX {
            self.memory
                .troubles
                .push_back(Trouble { stream: format!("{path}/{channel}"), what: what.to_owned() });
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

    fn fetch(&mut self, n: usize, index: &Index) -> Result<(), LiveError> {
        let stream = &mut self.streams[n];
        if self.traces[stream.trace].refused || (stream.seen > 0 && index.end <= stream.seen) {
            return Ok(());
        }
        loop {
            let stream = &mut self.streams[n];
            let (part, news) = self.connection.packet(stream.id, index, &mut stream.bytes)?;
            let trace = stream.trace;
            if news.metadata {
                self.more_metadata(trace)?;
            }
            if news.streams {
                let fresh = self.connection.new_streams(self.session.id)?;
                self.add(fresh.unwrap_or_default())?;
            }
            match part {
                Part::Here => break,
                Part::Retry if news != News::default() => {}
                Part::Retry | Part::Gone => {
                    self.memory.counts.gone += 1;
                    return Ok(());
                }
            }
        }
        self.memory.counts.packets += 1;
        self.streams[n].heard = Instant::now();
        // What a packet's counters say was lost may have been lost until its end.
        let (from, lost) = (self.streams[n].end, self.streams[n].counted);
        self.streams[n].end = index.end;
        let mut opened = self.open(n);
        if let Err(PacketError::UnknownStream(_) | PacketError::NoMetadata) = opened {
            self.more_metadata(self.streams[n].trace)?;
            opened = self.open(n);
        }
        self.note_gap(n, from, lost);
        if let Err(error) = opened {
            self.broken(n, &error);
            return Ok(());
        }
        if self.traces[self.streams[n].trace].conversion.is_none() {
            return Ok(());
        }
        match self.decode(n)? {
            Some(ns) => {
                self.streams[n].asked = false;
                self.merge.ready(n, ns);
            }
            None => self.exhausted(n),
        }
        Ok(())
    }

    fn open(&mut self, n: usize) -> Result<(), PacketError> {
        let stream = &mut self.streams[n];
        let live = &mut self.traces[stream.trace];
        let opened = stream.decoder.open(&live.trace, &stream.bytes);
        let lost = stream.decoder.losses;
        self.memory.counts.lost.events += lost.events - stream.counted.events;
        self.memory.counts.lost.packets += lost.packets - stream.counted.packets;
        stream.counted = lost;
        (stream.head, stream.place) = opened?;
        if live.conversion.is_none() {
            let name = live.trace.streams[stream.head.stream].clock.clone();
            let clock = name.and_then(|name| live.trace.clock(&name));
            match clock.map(|clock| self.here.convert(clock)) {
                Some(Ok(conversion)) => live.conversion = Some(conversion),
                Some(Err(error)) => {
                    let trace = stream.trace;
                    self.refuse(trace, &error.to_string());
                }
                None => {
                    let trace = stream.trace;
                    self.refuse(trace, "its events have no time");
                }
            }
        }
        Ok(())
    }

    fn note_gap(&mut self, n: usize, from: u64, before: Losses) {
        let lost = self.streams[n].counted;
        if lost == before {
            return;
        }
        // A beacon says that there was nothing until then.
        let from = from.max(self.streams[n].beacon);
        let span = (self.ns(n, from), self.ns(n, self.streams[n].end));
        let (Some(from_ns), Some(until_ns)) = span else { return };
        let gap = Gap { from_ns, until_ns, events: lost.events - before.events };
        self.gap = Some(gap.and(self.gap));
    }

    /// The rest of the packet is lost too.
    fn broken(&mut self, n: usize, error: &PacketError) {
        if let Some(until_ns) = self.ns(n, self.streams[n].end) {
            let from_ns = self.memory.last_ns.unwrap_or(until_ns).min(until_ns);
            self.gap = Some(Gap { from_ns, until_ns, events: 0 }.and(self.gap));
        }
        self.memory.counts.broken += 1;
        self.streams[n].place = Place::default();
        self.trouble(n, &error.to_string());
        self.exhausted(n);
    }

    /// Decodes the stream's next event; its time.
    fn decode(&mut self, n: usize) -> Result<Option<i64>, LiveError> {
        match self.step(n) {
            Err(PacketError::UnknownEvent { .. }) => {
                self.more_metadata(self.streams[n].trace)?;
                match self.step(n) {
                    Ok(time) => Ok(time),
                    Err(error) => {
                        self.broken(n, &error);
                        Ok(None)
                    }
                }
            }
            Err(error) => {
                self.broken(n, &error);
                Ok(None)
            }
            Ok(time) => Ok(time),
        }
    }

    #[inline]
    fn step(&mut self, n: usize) -> Result<Option<i64>, PacketError> {
        let stream = &mut self.streams[n];
        let live = &self.traces[stream.trace];
        let Some(conversion) = live.conversion else { return Ok(None) };
        let there = stream.decoder.next(&live.trace, &stream.bytes, &mut stream.place, &mut stream.event)?;
        Ok(there.then(|| conversion.timeline.ns(stream.event.time)))
    }

    fn ns(&self, n: usize, ticks: u64) -> Option<i64> {
        self.traces[self.streams[n].trace].conversion.map(|converted| converted.timeline.ns(ticks))
    }

    /// The stream has given all of its packet: nothing more comes of it before the packet's end.
    fn exhausted(&mut self, n: usize) {
        self.streams[n].asked = true;
        if let Some(ns) = self.ns(n, self.streams[n].end) {
            self.merge.quiet(n, ns);
        }
    }

    fn give(&mut self, out: &mut impl FnMut(&View<'_>)) {
        self.wait_no_longer();
        while let Some((time, n)) = self.merge.pop() {
            self.held_since = None;
            let mut time_ns = time;
            loop {
                self.give_one(n, time_ns, out);
                // What is not declared yet is asked for where packets are fetched; here it would stop the others.
                match self.step(n) {
                    Ok(Some(next)) if next <= self.merge.bound() => time_ns = next,
                    Ok(Some(next)) => {
                        self.merge.ready(n, next);
                        break;
                    }
                    Ok(None) => {
                        self.exhausted(n);
                        break;
                    }
                    Err(error @ PacketError::UnknownEvent { .. }) => {
                        match self.decode(n) {
                            Ok(Some(next)) => self.merge.ready(n, next),
                            Ok(None) => {}
                            Err(_) => self.broken(n, &error),
                        }
                        break;
                    }
                    Err(error) => {
                        self.broken(n, &error);
                        break;
                    }
                }
            }
        }
    }

    #[inline]
    fn give_one(&mut self, n: usize, time_ns: i64, out: &mut impl FnMut(&View<'_>)) {
        let counts = &mut self.memory.counts;
        counts.events += 1;
        match self.memory.last_ns {
            Some(last) if last > time_ns => {
                counts.late += 1;
                // What was believed meanwhile did not know of it.
                self.gap = Some(Gap { from_ns: time_ns, until_ns: last, events: 0 }.and(self.gap));
            }
            _ => self.memory.last_ns = Some(time_ns),
        }
        let stream = &self.streams[n];
        out(&View {
            trace: &self.traces[stream.trace].trace,
            trace_index: stream.trace,
            stream_index: n,
            head: &stream.head,
            packet: &stream.bytes,
            event: &stream.event,
            time_ns,
            gap: self.gap.take(),
        });
    }

    /// Streams that have held others up for too long are taken to have nothing.
    fn wait_no_longer(&mut self) {
        let Some(first) = self.merge.earliest() else { return };
        if first <= self.merge.limit() {
            return;
        }
        let since = *self.held_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.settings.wait_max {
            return;
        }
        let latest = self.merge.latest().unwrap_or(first);
        let holding: Vec<usize> = self.merge.holding(latest).collect();
        holding.into_iter().for_each(|n| self.merge.quiet(n, latest));
    }
}

fn no_session(name: &str, found: &[Session]) -> LiveError {
    let names: Vec<&str> = found.iter().map(|session| session.name.as_str()).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    LiveError::NoSession { name: name.to_owned(), known }
}
