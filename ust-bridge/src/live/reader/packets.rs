//! A stream's next packet, and its next event.

use std::time::{Duration, Instant};

use super::super::connection::{LiveError, Part};
use super::super::protocol::{Index, News};
use super::{Reader, not_attached};
use crate::ctf::packet::{Losses, PacketError, Place};
use crate::view::Gap;

/// How long a packet waits for the metadata that describes it.
const METADATA_WITHIN: Duration = Duration::from_secs(10);

impl Reader {
    pub(super) fn fetch(&mut self, n: usize, index: &Index) -> Result<(), LiveError> {
        let stream = &mut self.streams[n];
        if self.traces[stream.trace].refused || (stream.seen > 0 && index.end <= stream.seen) {
            return Ok(());
        }
        loop {
            let stream = &mut self.streams[n];
            let connection = self.connection.as_mut().ok_or_else(not_attached)?;
            let (part, news) = connection.packet(stream.id, index, &mut stream.bytes)?;
            let trace = stream.trace;
            if news.metadata {
                self.more_metadata(trace)?;
            }
            if news.streams {
                let fresh = self.new_streams()?;
                self.add(fresh.unwrap_or_default())?;
            }
            match part {
                Part::Here => break,
                Part::Retry if news != News::default() => {}
                Part::Retry | Part::Gone => {
                    self.counts.gone += 1;
                    return Ok(());
                }
            }
        }
        self.counts.packets += 1;
        self.streams[n].heard = Instant::now();
        // What a packet's counters say was lost may have been lost until its end.
        let from = std::mem::replace(&mut self.streams[n].end, index.end);
        self.begin(n, from, Instant::now())
    }

    /// Packets that came before what describes them: metadata goes its own way, and a session's first packets may be at the relay
    /// before it. Others do not wait for them.
    pub(super) fn begin_those_that_wait(&mut self) -> Result<(), LiveError> {
        for n in 0..self.streams.len() {
            if let Some((from, since)) = self.streams[n].waits.take() {
                // As it was when the packet came: what cannot be read is passed over, and the stream asked for more.
                self.streams[n].asked = true;
                self.begin(n, from, since)?;
            }
        }
        Ok(())
    }

    /// Decodes the first event of the packet that has come, at `since`; before it the stream was known until `from`.
    fn begin(&mut self, n: usize, from: u64, since: Instant) -> Result<(), LiveError> {
        let lost = self.streams[n].counted;
        let mut opened = self.open(n);
        if let Err(PacketError::UnknownStream(_) | PacketError::NoMetadata) = opened {
            // Nor is the stream that it comes by always named at once.
            if self.traces[self.streams[n].trace].metadata.is_none() {
                let fresh = self.new_streams()?;
                self.add(fresh.unwrap_or_default())?;
            }
            self.more_metadata(self.streams[n].trace)?;
            opened = self.open(n);
        }
        if let Err(PacketError::UnknownStream(_) | PacketError::NoMetadata) = opened
            && since.elapsed() < METADATA_WITHIN
        {
            self.streams[n].waits = Some((from, since));
            self.streams[n].asked = false;
            return Ok(());
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
        let (events, packets) = (lost.events - stream.counted.events, lost.packets - stream.counted.packets);
        self.counts.lost = self.counts.lost.and(Losses { events, packets });
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
    pub(super) fn broken(&mut self, n: usize, error: &PacketError) {
        if let Some(until_ns) = self.ns(n, self.streams[n].end) {
            let from_ns = self.last_ns.unwrap_or(until_ns).min(until_ns);
            self.gap = Some(Gap { from_ns, until_ns, events: 0 }.and(self.gap));
        }
        self.counts.broken += 1;
        self.streams[n].place = Place::default();
        self.trouble(n, &error.to_string());
        self.exhausted(n);
    }

    /// Decodes the stream's next event; its time.
    pub(super) fn decode(&mut self, n: usize) -> Result<Option<i64>, LiveError> {
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
    pub(super) fn step(&mut self, n: usize) -> Result<Option<i64>, PacketError> {
        let stream = &mut self.streams[n];
        let live = &self.traces[stream.trace];
        let Some(conversion) = live.conversion else { return Ok(None) };
        let there = stream.decoder.next(&live.trace, &stream.bytes, &mut stream.place, &mut stream.event)?;
        Ok(there.then(|| conversion.timeline.ns(stream.event.time)))
    }

    pub(super) fn ns(&self, n: usize, ticks: u64) -> Option<i64> {
        self.traces[self.streams[n].trace].conversion.map(|converted| converted.timeline.ns(ticks))
    }

    /// The stream has given all of its packet: nothing more comes of it before the packet's end.
    pub(super) fn exhausted(&mut self, n: usize) {
        self.streams[n].asked = true;
        if self.streams[n].dropped {
            self.close(n);
            return;
        }
        if let Some(ns) = self.ns(n, self.streams[n].end) {
            self.merge.quiet(n, ns);
        }
    }
}
