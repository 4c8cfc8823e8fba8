//! Which event goes next, and how long it waits for others.

use std::time::Instant;

use super::Reader;
use crate::ctf::packet::PacketError;
use crate::view::{Gap, View};

impl Reader {
    /// Gives out what may go.
    pub fn give(&mut self, out: &mut impl FnMut(&View<'_>)) {
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
        let counts = &mut self.counts;
        counts.events += 1;
        match self.last_ns {
            Some(last) if last > time_ns => {
                counts.late += 1;
                // What was believed meanwhile did not know of it.
                self.gap = Some(Gap { from_ns: time_ns, until_ns: last, events: 0 }.and(self.gap));
            }
            _ => self.last_ns = Some(time_ns),
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
        let Some(first) = self.merge.earliest().filter(|first| *first > self.merge.limit()) else {
            self.held_since = None;
            return;
        };
        let since = *self.held_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.settings.wait_max {
            return;
        }
        let latest = self.merge.latest().unwrap_or(first);
        let holding: Vec<usize> = self.merge.holding(latest).collect();
        holding.into_iter().for_each(|n| self.merge.quiet(n, latest));
    }
}
