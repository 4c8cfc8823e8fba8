//! Follower of the topic of `blkkin ctl --brokers`.
//!
//! *In*: the records of the topic, from its first on. *Out*: those for this node, to the [`Controller`](super::Controller).
//! *Invariant*: nothing is applied before the topic was read to its end, so a start does not repeat the changes of the
//! past.
//!
//! The cluster may be unreachable at the start. Then the options of the start apply until it answers. The topic is read
//! again each [`REREAD`]: compaction may remove a key without a trace for a reader that was away, and a topic can be replaced.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Compacted, CompactedReader, KafkaError, Settings};
use blkkin_tracer::StopSignal;
use blkkin_wire::ids::NodeId;
use tracing::{info, warn};

use super::RuntimeControl;
use crate::ctl::fleet::{FleetRecord, FleetRecords, NodeNames, host_name, printable};

/// Wait for a record, after which timed settings are ended. So one ends at most this much late.
const POLL: Duration = Duration::from_millis(500);
/// Time between two attempts to open the topic.
const RETRY: Duration = Duration::from_secs(5);
/// Time after which the topic is read from its first record again.
const REREAD: Duration = Duration::from_secs(300);
/// Most different obstacles, and most refused records, that are logged.
const REPORTED_MAX: usize = 64;

/// Returns the names by which records can select this node.
pub(super) fn node_names(node: NodeId) -> NodeNames {
    NodeNames(vec![host_name(), format!("{:032x}", node.0)])
}

/// Follows the topic until `stop`.
pub(super) fn follow(
    control: &RuntimeControl,
    settings: &Settings,
    topic: &str,
    names: &NodeNames,
    stop: &StopSignal,
) {
    info!("nodes of this agent in {topic}: {}", names.0.join(" or "));
    let (mut reported, mut refusals) = (BTreeSet::new(), Refusals::default());
    loop {
        let Err(error) = read(control, settings, topic, names, stop, &mut refusals) else {
            if stop.is_set() {
                return;
            }
            continue;
        };
        if reported.len() < REPORTED_MAX && reported.insert(error.to_string()) {
            warn!("changes by the topic {topic} wait: {error}; try: {}", error.remedy);
        }
        if stop.wait(RETRY) {
            return;
        }
        control.lock().end_due(Instant::now());
    }
}

/// Refused records, of which each counts once.
#[derive(Default)]
struct Refusals {
    count: usize,
    /// Offset behind the last refused record.
    next: i64,
}

/// Reads the topic until `stop`, for [`REREAD`], or until an error that needs a new reader.
fn read(
    control: &RuntimeControl,
    settings: &Settings,
    topic: &str,
    names: &NodeNames,
    stop: &StopSignal,
    refusals: &mut Refusals,
) -> Result<(), KafkaError> {
    settings.ensure_compacted_topic(topic)?;
    let reader = CompactedReader::open(settings, topic)?;
    let mut records = FleetRecords::default();
    let begun = Instant::now();
    while !stop.is_set() && begun.elapsed() < REREAD {
        match reader.next(POLL)? {
            Compacted::Record { offset, key, payload } => {
                let check = |record: &FleetRecord| match names.are_selected_by(&record.nodes) {
                    true => control.lock().check(record),
                    false => Ok(()),
                };
                if let Err(why) = records.take(offset, &key, payload.as_deref(), check)
                    && offset >= refusals.next
                {
                    refusals.next = offset + 1;
                    refusals.count += 1;
                    control.stats.refused.fetch_add(1, Relaxed);
                    if refusals.count <= REPORTED_MAX {
                        warn!("refused record {offset} of {topic}: {}", printable(&why));
                    }
                }
                control.stats.topic_offset.store(offset + 1, Relaxed);
            }
            Compacted::End => {
                let records = records.for_node(names);
                control.lock().set_fleet(records);
            }
            Compacted::Nothing => {}
        }
        control.lock().end_due(Instant::now());
    }
    Ok(())
}
