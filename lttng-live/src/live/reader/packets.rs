//! Fetching of packets, and decoding of the events in them.

use std::time::{Duration, Instant};

use super::super::connection::{LiveError, PacketReply};
use super::super::protocol::{Index, ViewerFlags};
use super::{Reader, not_attached};
use crate::clock::{ERROR_MAX, monotonic_ns};
use crate::ctf::packet::{Losses, PacketError, PacketPosition};
use crate::event_view::Gap;

/// Maximum time in ns of an event after its packet's arrival: the errors of two clocks.
const FUTURE_MAX: i64 = 2 * ERROR_MAX.as_nanos() as i64;

/// Maximum time that a packet waits for its metadata.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

impl Reader {
    pub(super) fn fetch_packet(&mut self, n: usize, index: &Index) -> Result<(), LiveError> {
        let stream = &mut self.streams[n];
        if self.traces[stream.trace].rejected || (stream.read_until > 0 && index.end <= stream.read_until) {
            return Ok(());
        }
        loop {
            let stream = &mut self.streams[n];
            let connection = self.connection.as_mut().ok_or_else(not_attached)?;
            let (reply, flags) = connection.packet(stream.id, index, &mut stream.bytes)?;
            let trace = stream.trace;
            if flags.new_metadata {
                self.read_metadata(trace)?;
            }
            if flags.new_streams {
                let updated = self.new_streams()?;
                self.add_streams(updated.unwrap_or_default())?;
            }
            match reply {
                PacketReply::Received => break,
                PacketReply::Retry if flags != ViewerFlags::default() => {}
                PacketReply::Retry | PacketReply::Overwritten => {
                    self.stats.overwritten += 1;
                    return Ok(());
                }
            }
        }
        self.stats.packets += 1;
        self.streams[n].last_activity = Instant::now();
        self.streams[n].arrival_ns = monotonic_ns() as i64;
        // Losses that a packet's counters report may have occurred up to its end.
        let from = std::mem::replace(&mut self.streams[n].end, index.end);
        self.begin_packet(n, from, Instant::now())
    }

    /// Retries packets that arrived before their metadata. Metadata takes another path, so a
    /// session's first packets can reach the relay before it. Other streams do not wait for these
    /// packets.
    pub(super) fn retry_undescribed_packets(&mut self) -> Result<(), LiveError> {
        for n in 0..self.streams.len() {
            if let Some((from, since)) = self.streams[n].awaiting_metadata.take() {
                // Resets the flag as at arrival: an unreadable packet is skipped, and the next one
                // requested.
                self.streams[n].needs_packet = true;
                self.begin_packet(n, from, since)?;
            }
        }
        Ok(())
    }

    /// Decodes the first event of a packet that arrived at `since`. The stream was known up to
    /// `from` before it.
    fn begin_packet(&mut self, n: usize, from: u64, since: Instant) -> Result<(), LiveError> {
        let lost = self.streams[n].losses_counted;
        let mut opened = self.open_packet(n);
        if let Err(PacketError::UnknownStream(_) | PacketError::NoMetadata) = opened {
            // The metadata stream may not be listed yet either.
            if self.traces[self.streams[n].trace].metadata.is_none() {
                let updated = self.new_streams()?;
                self.add_streams(updated.unwrap_or_default())?;
            }
            self.read_metadata(self.streams[n].trace)?;
            opened = self.open_packet(n);
        }
        if let Err(PacketError::UnknownStream(_) | PacketError::NoMetadata) = opened
            && since.elapsed() < METADATA_TIMEOUT
        {
            self.streams[n].awaiting_metadata = Some((from, since));
            self.streams[n].needs_packet = false;
            return Ok(());
        }
        self.record_gap(n, from, lost);
        if let Err(error) = opened {
            self.skip_packet(n, &error);
            return Ok(());
        }
        if self.traces[self.streams[n].trace].conversion.is_none() {
            return Ok(());
        }
        match self.next_event(n)? {
            Some(ns) => {
                self.streams[n].needs_packet = false;
                self.merge.ready(n, ns);
            }
            None => self.packet_exhausted(n),
        }
        Ok(())
    }

    fn open_packet(&mut self, n: usize) -> Result<(), PacketError> {
        let stream = &mut self.streams[n];
        let live = &mut self.traces[stream.trace];
        let opened = stream.decoder.open(&live.trace, &stream.bytes);
        let lost = stream.decoder.losses;
        let (events, packets) =
            (lost.events - stream.losses_counted.events, lost.packets - stream.losses_counted.packets);
        self.stats.lost = self.stats.lost.plus(Losses { events, packets });
        stream.losses_counted = lost;
        (stream.header, stream.position) = opened?;
        if live.conversion.is_none() {
            let name = live.trace.streams[stream.header.stream].clock.clone();
            let clock = name.and_then(|name| live.trace.clock(&name));
            match clock.map(|clock| self.host_clocks.convert(clock)) {
                Some(Ok(conversion)) => live.conversion = Some(conversion),
                Some(Err(error)) => {
                    let trace = stream.trace;
                    self.reject_trace(trace, &error.to_string());
                }
                None => {
                    let trace = stream.trace;
                    self.reject_trace(trace, "its events have no timestamp");
                }
            }
        }
        Ok(())
    }

    fn record_gap(&mut self, n: usize, from: u64, before: Losses) {
        let lost = self.streams[n].losses_counted;
        if lost == before {
            return;
        }
        // A beacon confirms that there were no events until then.
        let from = from.max(self.streams[n].beacon);
        let span = (self.ns(n, from), self.ns(n, self.streams[n].end));
        let (Some(from_ns), Some(until_ns)) = span else { return };
        let gap = Gap { from_ns, until_ns, events: lost.events - before.events };
        self.gap = Some(gap.merge(self.gap));
    }

    /// Skips the rest of a packet, which counts as lost.
    pub(super) fn skip_packet(&mut self, n: usize, error: &PacketError) {
        if let Some(until_ns) = self.ns(n, self.streams[n].end) {
            let from_ns = self.last_ns.unwrap_or(until_ns).min(until_ns);
            self.gap = Some(Gap { from_ns, until_ns, events: 0 }.merge(self.gap));
        }
        self.stats.unreadable += 1;
        self.streams[n].position = PacketPosition::default();
        self.report_problem(n, &error.to_string());
        self.packet_exhausted(n);
    }

    /// Decodes the stream's next event and returns its time.
    pub(super) fn next_event(&mut self, n: usize) -> Result<Option<i64>, LiveError> {
        match self.try_next_event(n) {
            Err(PacketError::UnknownEvent { .. }) => {
                self.read_metadata(self.streams[n].trace)?;
                match self.try_next_event(n) {
                    Ok(time) => Ok(time),
                    Err(error) => {
                        self.skip_packet(n, &error);
                        Ok(None)
                    }
                }
            }
            Err(error) => {
                self.skip_packet(n, &error);
                Ok(None)
            }
            Ok(time) => Ok(time),
        }
    }

    /// Decodes the stream's next event and returns its time. An event later than its packet's
    /// arrival has a foreign or forged clock: it is refused and counted, and the following ones are
    /// read. Accepted, it would let the other streams count as complete up to its time.
    #[inline]
    pub(super) fn try_next_event(&mut self, n: usize) -> Result<Option<i64>, PacketError> {
        loop {
            let stream = &mut self.streams[n];
            let live = &self.traces[stream.trace];
            let Some(conversion) = live.conversion else { return Ok(None) };
            let found =
                stream.decoder.next(&live.trace, &stream.bytes, &mut stream.position, &mut stream.event)?;
            if !found {
                return Ok(None);
            }
            let ns = conversion.ticks.ns(stream.event.time);
            if ns <= stream.arrival_ns.saturating_add(FUTURE_MAX) {
                return Ok(Some(ns));
            }
            self.refuse_event(n, ns);
        }
    }

    #[cold]
    fn refuse_event(&mut self, n: usize, ns: i64) {
        let arrival_ns = self.streams[n].arrival_ns;
        if !std::mem::replace(&mut self.streams[n].refused, true) {
            let ahead = Duration::from_nanos(ns.abs_diff(arrival_ns));
            self.report_problem(n, &format!("an event's time is {ahead:?} in the future"));
        }
        self.stats.future += 1;
        let from_ns = self.last_ns.unwrap_or(arrival_ns).min(arrival_ns);
        self.gap = Some(Gap { from_ns, until_ns: arrival_ns, events: 1 }.merge(self.gap));
    }

    /// Converts a time of a packet or a beacon. It is at most now: a stream may contain
    /// anything.
    pub(super) fn ns(&self, n: usize, ticks: u64) -> Option<i64> {
        let conversion = self.traces[self.streams[n].trace].conversion?;
        Some(conversion.ticks.ns(ticks).min(monotonic_ns() as i64))
    }

    /// Marks the stream as known up to the packet's end.
    pub(super) fn packet_exhausted(&mut self, n: usize) {
        self.streams[n].needs_packet = true;
        if self.streams[n].released {
            self.close_stream(n);
            return;
        }
        if let Some(ns) = self.ns(n, self.streams[n].end) {
            self.merge.idle(n, ns);
        }
    }
}
