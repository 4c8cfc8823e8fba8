//! `blkkin agent --replay FOLDER`: what was recorded goes into the topic, as if its machines were saying it now.
//!
//! *In*: a folder that `--record` wrote. *Out*: the same batches, in their order, each under its own node's key. *Invariant*:
//! how far the cluster has acknowledged stands in the folder (`replayed`), so whoever was killed goes on from there; what it had
//! sent behind that is sent again, and dropped by its sequence wherever it is read.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, EventProducer, Record, Sent, Settings};
use blkkin_bus::recording::{Position, Recording, note_progress, progress};
use blkkin_wire::ids::NodeId;
use blkkin_wire::v1;

use super::no_cluster;
use crate::failure::{Failure, Status};
use crate::output::say;
use crate::session::{Happening, Inbox};

/// Batches between two notes of how far it is: so many are sent again at the most.
const WINDOW: usize = 64;
/// And no longer than this between them, where a rate makes batches rare.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at whether the end was asked for.
const LOOK: Duration = Duration::from_millis(500);

/// Sends until all is sent, or until told to end; so many events a second, where a rate is given.
pub(super) fn replay(
    folder: &Path,
    settings: &Settings,
    rate: Option<u32>,
    inbox: &mut Inbox,
) -> Result<ExitCode, Failure> {
    let begin = progress(folder);
    let mut recording = Recording::open(folder, begin).map_err(|error| unreadable(folder, &error))?;
    let producer = EventProducer::new(settings, NodeId(0)).map_err(no_cluster)?;
    if begin != Position::default() {
        say(&format!("going on behind byte {} of file {}", begin.offset, begin.file));
    }
    let (mut events, mut batches, mut refused) = (0_u64, 0, 0);
    let begun = Instant::now();
    let ended = loop {
        let (mut behind, noted) = (None, Instant::now());
        for _ in 0..WINDOW {
            if behind.is_some() && noted.elapsed() >= NOTE_EVERY {
                break;
            }
            let Some((bytes, position)) = recording.read().map_err(|error| unreadable(folder, &error))?
            else {
                break;
            };
            behind = Some(position);
            let Ok(decoded) = v1::decode(&bytes) else {
                refused += 1;
                continue;
            };
            let node = decoded.batch.source.node;
            let count = decoded.batch.events.len() as u64;
            let record = Record { bytes, events: count };
            let due = rate.map(|rate| begun + Duration::from_secs_f64(events as f64 / f64::from(rate)));
            if !waited_until(due, inbox) || !send(&producer, node, record, inbox)? {
                return Ok(end(false, (events, batches, refused), &recording));
            }
            events += count;
            batches += 1;
        }
        let Some(behind) = behind else { break true };
        if !settle(&producer, inbox) {
            break false;
        }
        note_progress(folder, behind).map_err(|error| unreadable(folder, &error))?;
        if told_to_end(inbox, Duration::ZERO) {
            break false;
        }
    };
    Ok(end(ended, (events, batches, refused), &recording))
}

/// Waits for that moment; false where the end was asked for meanwhile.
fn waited_until(due: Option<Instant>, inbox: &mut Inbox) -> bool {
    while let Some(left) = due.and_then(|due| due.checked_duration_since(Instant::now())) {
        if told_to_end(inbox, left.min(LOOK)) {
            return false;
        }
    }
    true
}

fn send(
    producer: &EventProducer,
    node: NodeId,
    mut record: Record,
    inbox: &mut Inbox,
) -> Result<bool, Failure> {
    loop {
        match producer.send_for(node, record, || true).map_err(no_cluster)? {
            Sent::Queued => return Ok(true),
            Sent::Full(again) => record = again,
        }
        if told_to_end(inbox, LOOK) {
            return Ok(false);
        }
    }
}

/// Waits until the cluster has all of it; false where the end was asked for.
fn settle(producer: &EventProducer, inbox: &mut Inbox) -> bool {
    while producer.settle(LOOK).waiting() > 0 {
        if told_to_end(inbox, Duration::ZERO) {
            return false;
        }
    }
    true
}

fn told_to_end(inbox: &mut Inbox, patience: Duration) -> bool {
    match inbox.next(patience) {
        Some(Happening::Signal(arrival)) => !arrival.is_child(),
        Some(Happening::Waiting(remark)) => {
            say(&remark);
            false
        }
        Some(Happening::Found | Happening::PipelineEnded) | None => false,
    }
}

fn end(all: bool, (events, batches, refused): (u64, u64, u64), recording: &Recording) -> ExitCode {
    let how = if all { "all of it is sent" } else { "told to end; the next start goes on from here" };
    let mut line = format!("{events} events in {batches} batches to {EVENTS}; {how}");
    if refused + recording.damaged > 0 {
        line.push_str(&format!(
            "; {refused} entries are no batches, {} files are cut short or damaged",
            recording.damaged
        ));
    }
    say(&line);
    Status::Success.code()
}

fn unreadable(folder: &Path, error: &io::Error) -> Failure {
    let failure = Failure::usage(
        format!("cannot use the recording in {}", folder.display()),
        error,
        "a folder that blkkin agent --record has written, and in which a note of the progress can be kept",
    );
    Failure { status: Status::Failed, ..failure }
}
