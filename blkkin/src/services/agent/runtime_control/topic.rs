//! Follower of the topic of `blkkin ctl --brokers`.
//!
//! *In*: the records of the topic, from its first on. *Out*: those for this node, to the [`Controller`](super::Controller).
//! *Invariant*: nothing is applied before the topic was read to its end, so a start does not repeat the changes of the
//! past.
//!
//! The cluster may be unreachable at the start. Then the options of the start apply until it answers.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Compacted, CompactedReader, KafkaError, Settings};
use blkkin_tracer::StopSignal;
use blkkin_wire::ids::NodeId;
use tracing::warn;

use super::RuntimeControl;
use crate::ctl::fleet::{FleetRecords, NodeNames};

/// Wait for a record, after which timed settings are ended. So one ends at most this much late.
const POLL: Duration = Duration::from_millis(500);
/// Time between two attempts to open the topic.
const RETRY: Duration = Duration::from_secs(5);
/// Most different obstacles that are logged once each.
const REPORTED_MAX: usize = 64;

/// Returns the names by which records can select this node.
pub(super) fn node_names(node: NodeId) -> NodeNames {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    NodeNames(vec![host.trim().to_owned(), format!("{:032x}", node.0)])
}

/// Follows the topic until `stop`.
pub(super) fn follow(
    control: &RuntimeControl,
    settings: &Settings,
    topic: &str,
    names: &NodeNames,
    stop: &StopSignal,
) {
    let mut reported = BTreeSet::new();
    loop {
        let Err(error) = read(control, settings, topic, names, stop) else { return };
        if reported.len() < REPORTED_MAX && reported.insert(error.to_string()) {
            warn!("no changes by the topic {topic} yet: {error}; try: {}", error.remedy);
        }
        if stop.wait(RETRY) {
            return;
        }
        control.lock().end_due(Instant::now());
    }
}

/// Reads the topic until `stop`, or until an error that is permanent for this client.
fn read(
    control: &RuntimeControl,
    settings: &Settings,
    topic: &str,
    names: &NodeNames,
    stop: &StopSignal,
) -> Result<(), KafkaError> {
    settings.ensure_compacted_topic(topic)?;
    let reader = CompactedReader::open(settings, topic)?;
    let mut records = FleetRecords::default();
    while !stop.is_set() {
        match reader.next(POLL)? {
            Compacted::Record { offset, key, payload } => {
                if let Err(why) = records.take(offset, &key, payload.as_deref()) {
                    warn!("refused record {offset} of {topic}: {why}");
                    control.stats.refused.fetch_add(1, Relaxed);
                }
                control.stats.topic_offset.store(offset + 1, Relaxed);
            }
            Compacted::End => control.lock().set_fleet(records.for_node(names)),
            Compacted::Nothing => {}
        }
        control.lock().end_due(Instant::now());
    }
    Ok(())
}
