//! `blkkin ctl --brokers`: what the agents of a fleet shall record.
//!
//! *In*: a change, and a pattern of nodes. *Out*: a record of the topic, and the records that it has then. *Invariant*: exit
//! status 0 only if all in-sync replicas have the record. Agents take it within seconds, and each reports what it has
//! taken by its own metrics and log.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blkkin_bus::kafka::{Compacted, CompactedReader, KafkaError, SendError, Settings, SingleProducer};

use super::fleet::{FleetRecord, FleetRecords, check_nodes, host_name, printable};
use super::protocol::{self, Change, Request};
use super::resolve::resolve;
use crate::cli::{CtlArgs, FilterArgs};
use crate::error::CliError;
use crate::filter::keep::Disks;
use crate::service::format_utc;
use crate::service::kafka::{kafka_failed, settings};

/// Time limit for reading the topic.
const READ_LIMIT: Duration = Duration::from_secs(20);

/// Sends the change and prints the records of the topic.
pub(super) fn publish(args: &CtlArgs, brokers: &str, request: Request) -> Result<ExitCode, CliError> {
    let CtlArgs { nodes, topic, set, json, .. } = args;
    check_nodes(nodes).map_err(|why| {
        CliError::usage(format!("bad pattern `{nodes}` for --nodes"), why, "--nodes 'db-*'")
    })?;
    let settings = settings(brokers, set)?;
    let is_change = request != Request::Show;
    match request {
        Request::Show => settings.check_compacted_topic(topic).map_err(kafka_failed)?,
        Request::Change(change) => {
            let record = record(nodes, change)?;
            let payload = serde_json::to_vec(&record)
                .map_err(|error| CliError::usage("the record cannot be written", error, "other values"))?;
            send(&settings, topic, &[(record.key(), Some(payload))])?;
        }
        Request::Reset => {
            let keys = [true, false].map(|is_timed| (FleetRecord::key_for(nodes, is_timed), None));
            send(&settings, topic, &keys)?;
        }
    }
    let records = read(&settings, topic).map_err(|error| match is_change {
        true => CliError { what: format!("the cluster has the change, but {}", error.what), ..error },
        false => error,
    })?;
    let records = records.newest_first();
    let text = match json {
        true => serde_json::to_string_pretty(&records).unwrap_or_default() + "\n",
        false if records.is_empty() => {
            format!("{topic} has no records: agents record by their own options\n")
        }
        false => records.iter().map(|record| format!("{record}\n")).collect(),
    };
    // A closed stdout has no reader.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Makes the record of a change that an agent can apply.
fn record(nodes: &str, change: Change) -> Result<FleetRecord, CliError> {
    let start =
        protocol::RecordingSettings { recording: true, sample: "1/1".into(), keep: Vec::new(), budget: None };
    resolve(&mut start.with(&change), &FilterArgs::default(), Disks::Elsewhere)?;
    let now = SystemTime::now();
    let ms = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    // SAFETY: returns a number and cannot fail.
    let uid = unsafe { libc::getuid() };
    Ok(FleetRecord {
        nodes: nodes.to_owned(),
        until_ms: change.for_ms.map(|for_ms| ms(now).saturating_add(for_ms)),
        change: Change { for_ms: None, ..change },
        at: format_utc(now),
        from: format!("user {uid} on {}", host_name()),
    })
}

/// Sends records; one without a payload removes its key.
fn send(settings: &Settings, topic: &str, records: &[(String, Option<Vec<u8>>)]) -> Result<(), CliError> {
    settings.ensure_compacted_topic(topic).map_err(kafka_failed)?;
    let producer = SingleProducer::new(settings, topic).map_err(kafka_failed)?;
    for (key, payload) in records {
        producer.send(key.as_bytes(), &[], payload.as_deref()).map_err(|error| match error {
            SendError::TooLong(error) | SendError::Unreachable(error) => kafka_failed(error),
        })?;
    }
    Ok(())
}

/// Reads the topic to its end. What cannot be read is dropped, as by an agent.
fn read(settings: &Settings, topic: &str) -> Result<FleetRecords, CliError> {
    let reader = CompactedReader::open(settings, topic).map_err(kafka_failed)?;
    let mut records = FleetRecords::default();
    let deadline = Instant::now() + READ_LIMIT;
    while Instant::now() < deadline {
        match reader.next(Duration::from_millis(200)).map_err(kafka_failed)? {
            Compacted::Record { offset, key, payload } => {
                if let Err(why) = records.take(offset, &key, payload.as_deref(), |_| Ok(())) {
                    let why = printable(&why);
                    tracing::warn!("record {offset} of {topic} cannot be read: {why}");
                }
            }
            Compacted::End => return Ok(records),
            Compacted::Nothing => {}
        }
    }
    Err(kafka_failed(KafkaError {
        what: format!("the topic {topic} cannot be read"),
        why: format!(
            "the cluster at {} returned no end of it within {} s",
            settings.brokers,
            READ_LIMIT.as_secs()
        ),
        remedy: "check that all brokers run".to_owned(),
    }))
}
