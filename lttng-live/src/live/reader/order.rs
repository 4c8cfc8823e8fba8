//! Order of events across streams, and the wait for inactive streams.

use std::time::Instant;

use super::Reader;
use crate::ctf::packet::PacketError;
use crate::event_view::{EventView, Gap};

impl Reader {
    /// Emits the events that are due.
    pub fn emit_ready(&mut self, out: &mut impl FnMut(&EventView<'_>)) {
        self.release_blocked();
        while let Some((time, n)) = self.merge.pop() {
            self.blocked_since = None;
            let mut time_ns = time;
            loop {
                self.emit(n, time_ns, out);
                // Metadata for an undeclared event is requested with the packets; here it would
                // delay other streams.
                match self.try_next_event(n) {
                    Ok(Some(next)) if next <= self.merge.bound() => time_ns = next,
                    Ok(Some(next)) => {
                        self.merge.ready(n, next);
                        break;
                    }
                    Ok(None) => {
                        self.packet_exhausted(n);
                        break;
                    }
                    Err(error @ PacketError::UnknownEvent { .. }) => {
                        match self.next_event(n) {
                            Ok(Some(next)) => self.merge.ready(n, next),
                            Ok(None) => {}
                            Err(_) => self.skip_packet(n, &error),
                        }
                        break;
                    }
                    Err(error) => {
                        self.skip_packet(n, &error);
                        break;
                    }
                }
            }
        }
    }

    #[inline]
    fn emit(&mut self, n: usize, time_ns: i64, out: &mut impl FnMut(&EventView<'_>)) {
        let stats = &mut self.stats;
        stats.events += 1;
        match self.last_ns {
            Some(last) if last > time_ns => {
                stats.late += 1;
                // Updates were made without this event, so the interval counts as a gap.
                self.gap = Some(Gap { from_ns: time_ns, until_ns: last, events: 0 }.merge(self.gap));
            }
            _ => self.last_ns = Some(time_ns),
        }
        let stream = &self.streams[n];
        out(&EventView {
            trace: &self.traces[stream.trace].trace,
            user: self.traces[stream.trace].user,
            trace_index: stream.trace,
            stream_index: n,
            header: &stream.header,
            packet: &stream.bytes,
            event: &stream.event,
            time_ns,
            gap: self.gap.take(),
        });
    }

    /// Advances streams that blocked others for too long, as if they had no events.
    fn release_blocked(&mut self) {
        let Some(first) = self.merge.earliest().filter(|first| *first > self.merge.limit()) else {
            self.blocked_since = None;
            return;
        };
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.settings.wait_max {
            return;
        }
        let latest = self.merge.latest().unwrap_or(first);
        let blocking: Vec<usize> = self.merge.blocking(latest).collect();
        blocking.into_iter().for_each(|n| self.merge.idle(n, latest));
    }
}
