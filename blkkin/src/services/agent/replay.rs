//! `blkkin agent --replay FOLDER`: sends a recording to the topic, as if its machines were running
//! now.
//!
//! *In*: a folder that `--record` wrote. *Out*: the same batches, in order, each under its own
//! node's key, and those of guests under their host's. *Invariant*: the folder stores how far the cluster has acknowledged (`replayed`), so
//! a replay continues there after a crash. Batches sent beyond that point are sent again, and
//! consumers drop them by sequence number.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, EventProducer, Record, Sent, Settings};
use blkkin_bus::recording::{Position, Recording, progress, save_progress};
use blkkin_wire::ids::NodeId;
use blkkin_wire::v1;
use tracing::info;

use super::no_cluster;
use crate::control::{ControlEvent, ControlReceiver};
use crate::error::{CliError, Status};
use crate::guests::RecordedGuests;

/// Batches between two saves of the progress: the maximum that is sent again after a crash.
const WINDOW: usize = 64;
/// Maximum time between two saves of the progress, if a rate makes batches rare.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks for a stop request.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Sends the recording, up to `rate` events a second, until its end or a signal.
pub(super) fn replay(
    folder: &Path,
    settings: &Settings,
    rate: Option<u32>,
    control: &mut ControlReceiver,
) -> Result<ExitCode, CliError> {
    let begin = progress(folder);
    let mut guests = RecordedGuests::default();
    if begin != Position::default() {
        learn_guests(folder, &mut guests).map_err(|error| unreadable(folder, &error))?;
    }
    let mut recording = Recording::open(folder, begin).map_err(|error| unreadable(folder, &error))?;
    let producer = EventProducer::new(settings, NodeId(0)).map_err(no_cluster)?;
    if begin != Position::default() {
        info!("continuing after byte {} of file {}", begin.offset, begin.file);
    }
    let (mut events, mut batches, mut refused) = (0_u64, 0, 0);
    let started = Instant::now();
    let ended = loop {
        let (mut position, window_started) = (None, Instant::now());
        for _ in 0..WINDOW {
            if position.is_some() && window_started.elapsed() >= PROGRESS_INTERVAL {
                break;
            }
            let Some((bytes, position_after)) =
                recording.read().map_err(|error| unreadable(folder, &error))?
            else {
                break;
            };
            position = Some(position_after);
            let Ok(decoded) = v1::decode(&bytes) else {
                refused += 1;
                continue;
            };
            guests.learn(&decoded.batch);
            let node = decoded.batch.source.node;
            let node = guests.host_of(node).unwrap_or(node);
            let count = decoded.batch.events.len() as u64;
            let record = Record { bytes, events: count };
            let due = rate.map(|rate| started + Duration::from_secs_f64(events as f64 / f64::from(rate)));
            if !wait_until(due, control) || !send(&producer, node, record, control)? {
                return Ok(end(false, (events, batches, refused), &recording));
            }
            events += count;
            batches += 1;
        }
        let Some(position) = position else { break true };
        if !flush(&producer, control) {
            break false;
        }
        save_progress(folder, position).map_err(|error| unreadable(folder, &error))?;
        if stop_requested(control, Duration::ZERO) {
            break false;
        }
    };
    Ok(end(ended, (events, batches, refused), &recording))
}

/// Reads the whole recording for the guests in it.
fn learn_guests(folder: &Path, guests: &mut RecordedGuests) -> io::Result<()> {
    let mut recording = Recording::open(folder, Position::default())?;
    while let Some((bytes, _)) = recording.read()? {
        v1::decode(&bytes).iter().for_each(|decoded| guests.learn(&decoded.batch));
    }
    Ok(())
}

/// Waits until `due`; false after a stop request.
fn wait_until(due: Option<Instant>, control: &mut ControlReceiver) -> bool {
    while let Some(left) = due.and_then(|due| due.checked_duration_since(Instant::now())) {
        if stop_requested(control, left.min(CHECK_INTERVAL)) {
            return false;
        }
    }
    true
}

fn send(
    producer: &EventProducer,
    node: NodeId,
    mut record: Record,
    control: &mut ControlReceiver,
) -> Result<bool, CliError> {
    loop {
        match producer.send_for(node, record, || true).map_err(no_cluster)? {
            Sent::Queued => return Ok(true),
            Sent::Full(again) => record = again,
        }
        if stop_requested(control, CHECK_INTERVAL) {
            return Ok(false);
        }
    }
}

/// Waits until the cluster has acknowledged everything; false after a stop request.
fn flush(producer: &EventProducer, control: &mut ControlReceiver) -> bool {
    while producer.flush(CHECK_INTERVAL).waiting() > 0 {
        if stop_requested(control, Duration::ZERO) {
            return false;
        }
    }
    true
}

fn stop_requested(control: &mut ControlReceiver, timeout: Duration) -> bool {
    match control.next(timeout) {
        Some(ControlEvent::Signal(signal)) => !signal.is_child(),
        Some(ControlEvent::Status(status)) => {
            info!("{status}");
            false
        }
        Some(ControlEvent::ClusterReady | ControlEvent::PipelineEnded) | None => false,
    }
}

fn end(all: bool, (events, batches, refused): (u64, u64, u64), recording: &Recording) -> ExitCode {
    let how = if all { "the whole recording is sent" } else { "stopped; the next start continues from here" };
    let mut line = format!("{events} events in {batches} batches to {EVENTS}; {how}");
    if refused + recording.damaged > 0 {
        line.push_str(&format!(
            "; {refused} entries are not batches, {} files are truncated or damaged",
            recording.damaged
        ));
    }
    info!(events, batches, "{line}");
    Status::Success.code()
}

fn unreadable(folder: &Path, error: &io::Error) -> CliError {
    let failure = CliError::usage(
        format!("cannot use the recording in {}", folder.display()),
        error,
        "a writable folder with a recording of blkkin agent --record",
    );
    CliError { status: Status::Failed, ..failure }
}
