//! Who says when a trace was where: consumers of each topic beside the services' own, and somebody who asks Zipkin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use blkkin_bus::kafka::{EVENTS, SPANS, Settings, TRACES};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::v1;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::BorrowedMessage;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use super::journey::{Journeys, Point};
use crate::process::now_us;
use crate::zipkin::Zipkin;

/// Of the partitions of spans and traces these are looked at, so that looking takes little.
pub(super) const LOOKED_AT: i32 = 6;
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Traces of a question at the most.
const ASKED_MAX: usize = 50;

/// All of them.
pub(super) struct Witnesses {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    /// Spans seen in the partitions of traces that are looked at.
    pub(super) spans: Arc<AtomicU64>,
}

impl Witnesses {
    /// Of events those of this machine are looked at; the keys of nodes that are made up are small numbers.
    pub(super) fn start(
        settings: &Settings,
        partitions: i32,
        zipkin: &Arc<Zipkin>,
        journeys: &Arc<Journeys>,
    ) -> Witnesses {
        let (stop, spans) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut all = Witnesses { stop, threads: Vec::new(), spans };
        all.read(settings, EVENTS, partitions, journeys, events);
        let looked_at = LOOKED_AT.min(partitions);
        all.read(settings, SPANS, looked_at, journeys, |message, journeys| {
            pieces(message, journeys, Point::Joined, Point::SpansRead);
        });
        let spans = Arc::clone(&all.spans);
        all.read(settings, TRACES, looked_at, journeys, move |message, journeys| {
            spans.fetch_add(pieces(message, journeys, Point::Assembled, Point::TraceRead), Relaxed);
        });
        let (stop, zipkin, journeys) = (Arc::clone(&all.stop), Arc::clone(zipkin), Arc::clone(journeys));
        all.threads.push(std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                ask(&zipkin, &journeys);
                std::thread::sleep(ASK_EVERY);
            }
            Ok(())
        }));
        all
    }

    /// Ends them.
    pub(super) fn finish(self) -> Result<()> {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().try_for_each(|thread| thread.join().ok().context("a witness panicked")?)
    }

    fn read(
        &mut self,
        settings: &Settings,
        topic: &'static str,
        partitions: i32,
        journeys: &Arc<Journeys>,
        see: impl Fn(&BorrowedMessage<'_>, &Journeys) + Send + 'static,
    ) {
        let (settings, stop, journeys) = (settings.clone(), Arc::clone(&self.stop), Arc::clone(journeys));
        self.threads.push(std::thread::spawn(move || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", &settings.brokers).set("group.id", "bench");
            config.set("enable.auto.commit", "false").set("fetch.wait.max.ms", "100");
            let consumer: BaseConsumer = config.create()?;
            let mut list = TopicPartitionList::new();
            for partition in 0..partitions {
                list.add_partition_offset(topic, partition, Offset::End)?;
            }
            consumer.assign(&list)?;
            while !stop.load(Relaxed) {
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    see(&message, &journeys);
                }
            }
            Ok(())
        }));
    }
}

fn written(message: &BorrowedMessage<'_>) -> u64 {
    message.timestamp().to_millis().map_or(0, |ms| ms as u64 * 1_000)
}

fn events(message: &BorrowedMessage<'_>, journeys: &Journeys) {
    let now = now_us();
    let made_up = |key: &[u8]| key.len() == 16 && key[..14].iter().all(|byte| *byte == 0);
    if message.key().is_none_or(made_up) {
        return;
    }
    let Ok(decoded) = v1::decode(message.payload().unwrap_or_default()) else { return };
    let batch = decoded.batch;
    // The two clocks as they stand to each other now, not when the agent began.
    let of_kernel = |time: u64| now.saturating_sub(monotonic().saturating_sub(time) / 1_000);
    for event in &batch.events {
        let LayerEvent::Syscall(call) = event else { continue };
        let trace = batch.source.trace_id(call.span);
        journeys.are_of(trace);
        for (point, at) in [
            (Point::Ended, of_kernel(call.exit.0)),
            (Point::Drained, of_kernel(batch.watermark.0)),
            (Point::Appended, written(message)),
            (Point::EventsRead, now),
        ] {
            journeys.note(trace.0, point, at);
        }
    }
}

/// How many spans there were.
fn pieces(message: &BorrowedMessage<'_>, journeys: &Journeys, made: Point, read: Point) -> u64 {
    let now = now_us();
    let Ok(batch) = v1::decode_fragments(message.payload().unwrap_or_default()) else { return 0 };
    for piece in &batch.fragments {
        journeys.note(piece.trace.0, made, written(message));
        journeys.note(piece.trace.0, read, now);
    }
    batch.fragments.iter().map(|piece| piece.spans.len() as u64).sum()
}

fn ask(zipkin: &Zipkin, journeys: &Journeys) {
    for asked in journeys.awaited().chunks(ASKED_MAX) {
        let ids: Vec<String> = asked.iter().map(|trace| format!("{trace:032x}")).collect();
        // One trace is asked for in another way than many.
        let found = match ids.as_slice() {
            [one] => zipkin.get(&format!("/api/v2/trace/{one}")).map(|trace| vec![trace]),
            many => {
                let found = zipkin.get(&format!("/api/v2/traceMany?traceIds={}", many.join(",")));
                found.and_then(|found| found.as_array().cloned())
            }
        };
        let now = now_us();
        for trace in found.unwrap_or_default() {
            let id = trace[0]["traceId"].as_str().and_then(|id| u128::from_str_radix(id, 16).ok());
            if let Some(id) = id {
                journeys.note(id, Point::Visible, now);
            }
        }
    }
}

fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
