//! Reader of one session's streams.
//!
//! *In*: replies of the relay. *Out*: an [`EventView`] per event, and [`ReaderStats`]. The reader
//! asks for a stream's next packet after it has emitted the current one. It therefore holds one
//! packet's content per stream, independent of the relay's backlog.
//!
//! *Invariant*: each event is emitted once, in order of time unless it is counted as late. Losses
//! of a stream, unreadable packets and events of the future are counted in [`ReaderStats`].
//!
//! *Limit*: with buffers per process, streams that begin and end between two rounds are never
//! announced. The relay drops them (lttng-relayd, `make_viewer_streams`), and nothing counts their
//! events.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::connection::{Connection, LiveError};
use super::protocol::{IndexReply, Session, Stream, ViewerFlags};
use crate::clock::{ClockConversion, HostClocks};
use crate::ctf::metadata::{CtfTrace, MetadataError};
use crate::ctf::packet::{
    CounterBaseline, Decoder, Event, Losses, PacketError, PacketHeader, PacketPosition,
};
use crate::event_view::{EventView, Gap, buffer_owner};
use crate::merge::StreamMerge;

mod order;
mod packets;

/// Maximum number of problems to keep. Further ones are only counted.
const PROBLEMS_MAX: usize = 64;

/// Time for the relay to list a stream again. It does not list a stream while it holds the lost
/// connection's reader.
const LISTED_AGAIN_WITHIN: Duration = Duration::from_secs(5);

/// Settings of a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReaderSettings {
    /// Start with the oldest packet at the relay; otherwise with new packets.
    pub from_begin: bool,
    /// Maximum time that other streams wait for an inactive stream.
    pub wait_max: Duration,
}

impl Default for ReaderSettings {
    fn default() -> Self {
        Self { from_begin: true, wait_max: Duration::from_millis(200) }
    }
}

/// Counters of a reader.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReaderStats {
    /// Events emitted.
    pub events: u64,
    /// Emitted events that were out of order: their stream was inactive for too long, or was
    /// announced late.
    pub late: u64,
    /// Events refused because their time is in the future.
    pub future: u64,
    /// Packets received.
    pub packets: u64,
    /// Packets with a part that could not be read.
    pub unreadable: u64,
    /// Packets that the relay had overwritten before they were requested.
    pub overwritten: u64,
    /// Losses that the streams report. Overwritten packets are also lost packets.
    pub lost: Losses,
}

impl ReaderStats {
    /// Adds the statistics of a following session.
    #[must_use]
    pub fn plus(self, other: ReaderStats) -> ReaderStats {
        ReaderStats {
            events: self.events + other.events,
            late: self.late + other.late,
            future: self.future + other.future,
            packets: self.packets + other.packets,
            unreadable: self.unreadable + other.unreadable,
            overwritten: self.overwritten + other.overwritten,
            lost: self.lost.plus(other.lost),
        }
    }
}

/// Problem with a stream.
#[derive(Debug)]
pub struct StreamProblem {
    /// Path and channel of the stream.
    pub stream: String,
    /// Description of the problem.
    pub description: String,
}

/// Trace of the session: one per user, or one per process.
struct LiveTrace {
    /// Path at the relay, which identifies the trace across connections.
    path: String,
    /// Owner of its buffers.
    user: u32,
    metadata: Option<u64>,
    trace: CtfTrace,
    conversion: Option<ClockConversion>,
    rejected: bool,
}

/// Stream of packets.
struct LiveStream {
    id: u64,
    trace: usize,
    name: (String, String),
    decoder: Decoder,
    losses_counted: Losses,
    /// End of the last packet that an earlier connection has read.
    read_until: u64,
    /// The relay has listed the stream on this connection.
    listed: bool,
    /// The relay has released the stream: its current packet is the last.
    released: bool,
    /// End of the packet in `bytes`.
    end: u64,
    bytes: Vec<u8>,
    header: PacketHeader,
    position: PacketPosition,
    event: Event,
    needs_packet: bool,
    ended: bool,
    /// CLOCK_MONOTONIC in ns at the arrival of the packet in `bytes`.
    arrival_ns: i64,
    /// An event of the stream was refused.
    refused: bool,
    /// Arrival of the last packet or new beacon.
    last_activity: Instant,
    beacon: u64,
    /// For a packet without metadata: the time up to which the stream was known before it, and its
    /// arrival.
    awaiting_metadata: Option<(u64, Instant)>,
}

/// Result of one round.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Round {
    /// Events emitted.
    pub events: u64,
    /// Packets received.
    pub packets: u64,
    /// The session has ended.
    pub ended: bool,
    /// The session ended before the relay listed all streams again, so their unread data is lost.
    pub cut_short: bool,
}

/// Reader of a session, over one connection after another.
pub struct Reader {
    connection: Option<Connection>,
    session: Session,
    settings: ReaderSettings,
    host_clocks: HostClocks,
    traces: Vec<LiveTrace>,
    streams: Vec<LiveStream>,
    merge: StreamMerge,
    blocked_since: Option<Instant>,
    /// Losses that were not reported yet.
    gap: Option<Gap>,
    attached: Instant,
    replies: Vec<(IndexReply, ViewerFlags)>,
    scratch: Vec<u8>,
    stats: ReaderStats,
    last_ns: Option<i64>,
    problems: VecDeque<StreamProblem>,
}

impl Reader {
    /// Creates a reader for the session `name`, without a connection.
    pub fn new(name: &str, settings: ReaderSettings, host_clocks: HostClocks) -> Self {
        let name = name.to_owned();
        let session = Session { id: 0, live_timer_us: 0, clients: 0, streams: 0, host: String::new(), name };
        Self {
            connection: None,
            session,
            settings,
            host_clocks,
            traces: Vec::new(),
            streams: Vec::new(),
            merge: StreamMerge::default(),
            blocked_since: None,
            gap: None,
            attached: Instant::now(),
            replies: Vec::new(),
            scratch: Vec::new(),
            stats: ReaderStats::default(),
            last_ns: None,
            problems: VecDeque::new(),
        }
    }

    /// Attaches to the newest session of this name. A later connection always continues with the
    /// oldest data at the relay; `from_begin` applies to the first only.
    pub fn attach(&mut self, mut connection: Connection) -> Result<(), LiveError> {
        let found = connection.sessions()?;
        let name = self.session.name.clone();
        let newest = found.iter().filter(|session| session.name == name).max_by_key(|session| session.id);
        let session = newest.ok_or_else(|| no_session(&name, &found))?.clone();
        let again = self.session.id != 0 || !self.streams.is_empty();
        let streams = connection.attach(&session, self.settings.from_begin || again)?;
        (self.session, self.connection) = (session, Some(connection));
        self.attached = Instant::now();
        let added = self.add_streams(streams);
        if added.is_err() {
            self.detach();
        }
        added
    }

    /// Drops the connection. Pending events are emitted when they are due.
    pub fn detach(&mut self) {
        self.connection = None;
        for stream in &mut self.streams {
            stream.read_until = stream.read_until.max(stream.end);
            stream.listed = false;
        }
        for trace in &mut self.traces {
            trace.metadata = None;
        }
    }

    /// Returns true while there is a connection.
    pub fn is_attached(&self) -> bool {
        self.connection.is_some()
    }

    /// Ends the streams that the relay has not listed again: they ended while there was no
    /// connection.
    fn end_unlisted_streams(&mut self) {
        for n in 0..self.streams.len() {
            if !self.streams[n].listed && !self.streams[n].released {
                self.streams[n].released = true;
                if self.streams[n].needs_packet {
                    self.close_stream(n);
                }
            }
        }
    }

    /// Returns the session as listed by the relay.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the statistics over all connections.
    pub fn stats(&self) -> ReaderStats {
        self.stats
    }

    /// Returns and clears the problems of streams.
    pub fn take_problems(&mut self) -> impl Iterator<Item = StreamProblem> + '_ {
        self.problems.drain(..)
    }

    /// Returns the maximum error of converted times; 0 if all clocks are CLOCK_MONOTONIC.
    pub fn clock_error(&self) -> Duration {
        let errors = self.traces.iter().filter_map(|trace| trace.conversion).map(|converted| converted.error);
        errors.max().unwrap_or_default()
    }

    /// Returns the losses of each stream, with its path and channel.
    pub fn losses(&self) -> impl Iterator<Item = (&(String, String), Losses)> {
        self.streams.iter().map(|stream| (&stream.name, stream.decoder.losses))
    }

    /// Returns streams that are inactive for `long` while others are active: their rings are stuck.
    pub fn inactive_streams(&self, long: Duration) -> impl Iterator<Item = &(String, String)> {
        let open = || self.streams.iter().filter(|stream| !stream.ended);
        let others_active = open().any(|stream| stream.last_activity.elapsed() < long / 2);
        open()
            .filter(move |stream| others_active && stream.last_activity.elapsed() >= long)
            .map(|stream| &stream.name)
    }

    /// Returns the time up to which all events of known streams are emitted; `None` without a
    /// stream.
    pub fn complete_until(&mut self) -> Option<i64> {
        let open = self.streams.iter().any(|stream| !stream.ended);
        open.then(|| self.merge.bound()).filter(|&bound| bound != i64::MIN)
    }

    /// Returns and clears the losses found since the last event.
    pub fn take_gap(&mut self) -> Option<Gap> {
        self.gap.take()
    }

    /// Returns the size of all held packets in bytes.
    pub fn bytes_held(&self) -> usize {
        self.streams.iter().map(|stream| stream.bytes.capacity()).sum()
    }

    /// Requests the next packet of each stream without one, and emits the events that are due.
    pub fn round(&mut self, out: &mut impl FnMut(&EventView<'_>)) -> Result<Round, LiveError> {
        let before = self.stats;
        self.retry_undescribed_packets()?;
        let requested: Vec<usize> = (0..self.streams.len())
            .filter(|&n| self.streams[n].needs_packet && self.streams[n].listed)
            .collect();
        let ids: Vec<u64> = requested.iter().map(|&n| self.streams[n].id).collect();
        let mut replies = std::mem::take(&mut self.replies);
        replies.clear();
        self.connection()?.next_indexes(&ids, &mut replies)?;
        let mut flags = ViewerFlags::default();
        for (&n, (next, updated)) in requested.iter().zip(&replies) {
            flags.new_streams |= updated.new_streams;
            if updated.new_metadata {
                self.read_metadata(self.streams[n].trace)?;
            }
            self.handle_index(n, next)?;
        }
        self.replies = replies;
        let open = self.streams.iter().any(|stream| stream.listed && !stream.ended);
        let missing = self.streams.iter().any(|stream| !stream.listed && !stream.released);
        let mut ended = false;
        // Without an open stream no reply carries the flag for new streams.
        if flags.new_streams || !open || missing {
            match self.new_streams()? {
                Some(streams) => self.add_streams(streams)?,
                None => ended = !open,
            }
        }
        if missing && self.attached.elapsed() >= LISTED_AGAIN_WITHIN {
            self.end_unlisted_streams();
        }
        self.emit_ready(out);
        let stats = self.stats;
        let (events, packets) = (stats.events - before.events, stats.packets - before.packets);
        Ok(Round { events, packets, ended, cut_short: ended && missing })
    }

    /// Emits all pending events and disconnects.
    pub fn finish(&mut self, out: &mut impl FnMut(&EventView<'_>)) {
        self.detach();
        for n in 0..self.streams.len() {
            self.streams[n].released = true;
            if self.streams[n].awaiting_metadata.take().is_some() {
                self.skip_packet(n, &PacketError::NoMetadata);
            }
            if self.streams[n].needs_packet {
                self.close_stream(n);
            }
        }
        self.emit_ready(out);
    }

    fn connection(&mut self) -> Result<&mut Connection, LiveError> {
        self.connection.as_mut().ok_or_else(not_attached)
    }

    fn new_streams(&mut self) -> Result<Option<Vec<Stream>>, LiveError> {
        let session = self.session.id;
        self.connection()?.new_streams(session)
    }

    fn add_streams(&mut self, streams: Vec<Stream>) -> Result<(), LiveError> {
        for stream in streams {
            let known = self.traces.iter().position(|trace| trace.path == stream.path);
            let trace = known.unwrap_or_else(|| {
                let (path, trace) = (stream.path.clone(), CtfTrace::default());
                self.traces.push(LiveTrace {
                    user: buffer_owner(&path),
                    path,
                    metadata: None,
                    trace,
                    conversion: None,
                    rejected: false,
                });
                self.traces.len() - 1
            });
            if stream.is_metadata {
                self.reread_metadata(trace, stream.id)?;
                continue;
            }
            let name = (stream.path, stream.channel);
            if let Some(known) = self.streams.iter_mut().find(|known| known.name == name) {
                (known.id, known.last_activity, known.listed) = (stream.id, Instant::now(), true);
                continue;
            }
            let baseline =
                if self.settings.from_begin { CounterBaseline::Zero } else { CounterBaseline::FirstPacket };
            self.merge.add(i64::MIN);
            self.streams.push(LiveStream {
                id: stream.id,
                trace,
                name,
                losses_counted: Losses::default(),
                decoder: Decoder::new(baseline),
                read_until: 0,
                listed: true,
                released: false,
                end: 0,
                bytes: Vec::new(),
                header: PacketHeader::default(),
                position: PacketPosition::default(),
                event: Event::default(),
                needs_packet: true,
                ended: false,
                arrival_ns: 0,
                refused: false,
                last_activity: Instant::now(),
                beacon: 0,
                awaiting_metadata: None,
            });
        }
        (0..self.traces.len()).try_for_each(|trace| self.read_metadata(trace))
    }

    /// Reads the metadata again, because a relay sends all of it on each connection. The old
    /// metadata stays until the new one is as long, because it decoded the pending events.
    fn reread_metadata(&mut self, trace: usize, stream: u64) -> Result<(), LiveError> {
        let known = &mut self.traces[trace];
        known.metadata = Some(stream);
        if known.trace.text().is_empty() {
            return Ok(());
        }
        let before = std::mem::take(&mut known.trace);
        let read = self.read_metadata(trace);
        let known = &mut self.traces[trace];
        if read.is_err() || !known.trace.text().starts_with(before.text()) {
            known.trace = before;
        }
        read
    }

    /// Reads new metadata of a trace.
    fn read_metadata(&mut self, trace: usize) -> Result<(), LiveError> {
        let Some(stream) = self.traces[trace].metadata else { return Ok(()) };
        loop {
            let Some(connection) = &mut self.connection else { return Ok(()) };
            connection.metadata(stream, &mut self.scratch)?;
            if self.scratch.is_empty() {
                return Ok(());
            }
            let live = &mut self.traces[trace];
            if live.rejected {
                continue;
            }
            match live.trace.append(&self.scratch) {
                Ok(()) => {}
                Err(MetadataError::Ctf2) => return Err(LiveError::Ctf2(self.session.name.clone())),
                Err(error) => self.reject_trace(trace, &error.to_string()),
            }
        }
    }

    /// Rejects a trace that cannot be decoded.
    fn reject_trace(&mut self, trace: usize, why: &str) {
        self.traces[trace].rejected = true;
        for n in 0..self.streams.len() {
            if self.streams[n].trace == trace && !self.streams[n].ended {
                self.report_problem(n, why);
            }
        }
    }

    fn report_problem(&mut self, n: usize, problem: &str) {
        let (path, channel) = &self.streams[n].name;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push_back(StreamProblem {
                stream: format!("{path}/{channel}"),
                description: problem.to_owned(),
            });
        }
    }

    fn handle_index(&mut self, n: usize, next: &IndexReply) -> Result<(), LiveError> {
        match next {
            IndexReply::Packet(index) => self.fetch_packet(n, index),
            IndexReply::Retry => Ok(()),
            IndexReply::Inactive(ticks) => {
                let stream = &mut self.streams[n];
                if *ticks > stream.beacon {
                    (stream.beacon, stream.last_activity) = (*ticks, Instant::now());
                }
                if let Some(ns) = self.ns(n, *ticks) {
                    self.merge.idle(n, ns);
                }
                Ok(())
            }
            IndexReply::HungUp => {
                self.close_stream(n);
                Ok(())
            }
            IndexReply::Failed(status) => Err(LiveError::Protocol(format!("status {status} of an index"))),
        }
    }

    fn close_stream(&mut self, n: usize) {
        self.merge.close(n);
        let stream = &mut self.streams[n];
        (stream.ended, stream.needs_packet) = (true, false);
        stream.bytes = Vec::new();
    }
}

fn not_attached() -> LiveError {
    LiveError::Unreachable { address: String::new(), error: std::io::ErrorKind::NotConnected.into() }
}

fn no_session(name: &str, found: &[Session]) -> LiveError {
    let names: Vec<&str> = found.iter().map(|session| session.name.as_str()).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    LiveError::NoSession { name: name.to_owned(), known }
}
