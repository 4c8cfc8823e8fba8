//! Observers of traces: consumers of each topic in addition to those of the services, and a poller
//! of Zipkin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use blkkin_bus::kafka::{EVENTS, SPANS, Settings, TRACES};
use blkkin_tracer::clock;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::v1;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::BorrowedMessage;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use super::timeline::{Checkpoint, TraceTimelines};
use crate::process::now_us;
use crate::zipkin::Zipkin;

/// Number of observed partitions of spans and traces, which limits the cost.
pub(super) const PARTITIONS_OBSERVED: i32 = 6;
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of traces per query.
const TRACES_PER_QUERY: usize = 50;

/// Running observers.
pub(super) struct Observers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    /// Spans in the observed partitions of traces.
    pub(super) spans: Arc<AtomicU64>,
}

impl Observers {
    /// Starts the observers. Of the events, only those of this machine are decoded; the keys of
    /// simulated nodes are small numbers.
    pub(super) fn start(
        settings: &Settings,
        partitions: i32,
        zipkin: &Arc<Zipkin>,
        timelines: &Arc<TraceTimelines>,
    ) -> Observers {
        let (stop, spans) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut all = Observers { stop, threads: Vec::new(), spans };
        all.read(settings, EVENTS, partitions, timelines, events);
        let observed = PARTITIONS_OBSERVED.min(partitions);
        all.read(settings, SPANS, observed, timelines, |message, timelines| {
            note_fragments(message, timelines, Checkpoint::Joined, Checkpoint::SpansRead);
        });
        let spans = Arc::clone(&all.spans);
        all.read(settings, TRACES, observed, timelines, move |message, timelines| {
            spans.fetch_add(
                note_fragments(message, timelines, Checkpoint::Assembled, Checkpoint::TraceRead),
                Relaxed,
            );
        });
        let (stop, zipkin, timelines) = (Arc::clone(&all.stop), Arc::clone(zipkin), Arc::clone(timelines));
        all.threads.push(std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                poll_zipkin(&zipkin, &timelines);
                std::thread::sleep(POLL_INTERVAL);
            }
            Ok(())
        }));
        all
    }

    /// Stops the observers.
    pub(super) fn finish(self) -> Result<()> {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().try_for_each(|thread| thread.join().ok().context("a witness panicked")?)
    }

    fn read(
        &mut self,
        settings: &Settings,
        topic: &'static str,
        partitions: i32,
        timelines: &Arc<TraceTimelines>,
        observe: impl Fn(&BorrowedMessage<'_>, &TraceTimelines) + Send + 'static,
    ) {
        let (settings, stop, timelines) = (settings.clone(), Arc::clone(&self.stop), Arc::clone(timelines));
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
                    observe(&message, &timelines);
                }
            }
            Ok(())
        }));
    }
}

fn timestamp_us(message: &BorrowedMessage<'_>) -> u64 {
    message.timestamp().to_millis().map_or(0, |ms| ms as u64 * 1_000)
}

fn events(message: &BorrowedMessage<'_>, timelines: &TraceTimelines) {
    let now = now_us();
    let made_up = |key: &[u8]| key.len() == 16 && key[..14].iter().all(|byte| *byte == 0);
    if message.key().is_none_or(made_up) {
        return;
    }
    let Ok(decoded) = v1::decode(message.payload().unwrap_or_default()) else { return };
    let batch = decoded.batch;
    // The current offset between the two clocks, not that at the agent's start.
    let of_kernel = |time: u64| now.saturating_sub(clock::now().0.saturating_sub(time) / 1_000);
    for event in &batch.events {
        let LayerEvent::Syscall(call) = event else { continue };
        let trace = batch.source.trace_id(call.span);
        timelines.set_source(trace);
        for (point, at) in [
            (Checkpoint::Ended, of_kernel(call.exit.0)),
            (Checkpoint::Drained, of_kernel(batch.watermark.0)),
            (Checkpoint::Appended, timestamp_us(message)),
            (Checkpoint::EventsRead, now),
        ] {
            timelines.note(trace.0, point, at);
        }
    }
}

/// Notes the traces of a record and returns its number of spans.
fn note_fragments(
    message: &BorrowedMessage<'_>,
    timelines: &TraceTimelines,
    made: Checkpoint,
    read: Checkpoint,
) -> u64 {
    let now = now_us();
    let Ok(batch) = v1::decode_fragments(message.payload().unwrap_or_default()) else { return 0 };
    for fragment in &batch.fragments {
        timelines.note(fragment.trace.0, made, timestamp_us(message));
        timelines.note(fragment.trace.0, read, now);
    }
    batch.fragments.iter().map(|fragment| fragment.spans.len() as u64).sum()
}

fn poll_zipkin(zipkin: &Zipkin, timelines: &TraceTimelines) {
    for chunk in timelines.pending().chunks(TRACES_PER_QUERY) {
        let ids: Vec<String> = chunk.iter().map(|trace| format!("{trace:032x}")).collect();
        // Zipkin's API for one trace differs from that for several.
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
                timelines.note(id, Checkpoint::Visible, now);
            }
        }
    }
}
