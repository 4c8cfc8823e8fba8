//! `blkkin report`: reports on a recording, as `run` and `trace` report on what they traced.
//!
//! *In*: a folder that `blkkin agent --record` wrote, also by dumps of its flight recorder. *Out*: the report, and spans
//! for destinations. *Invariant*: each trace is that which an aggregator makes of the same batches. An entry that is
//! damaged ends its file, and one that does not decode is dropped; both are counted and reported.
//!
//! A recording is read twice: first for its machine and its time, which the report's first line has.
//!
//! Guests of the machine (`--guests` of the agent) have clocks of their own, of which the records have bounds.
//!
//! A recording of several other machines, or of one that was started again meanwhile, has several clocks. *Rejected*: one
//! report on all of them, whose times would not be comparable. An aggregator makes traces of each (`--replay`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use blkkin_bus::recording::{Position, Recording};
use blkkin_bus::{CAPACITY_DEFAULT, Publisher, channel};
use blkkin_report::collect::daemon_spans::DaemonSpanInput;
use blkkin_report::{Report, ReportConfig};
use blkkin_tracer::{Detail, TraceScope};
use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::{BootId, NodeId, StartEpoch};
use blkkin_wire::v1;

use crate::cli::ReportArgs;
use crate::destination;
use crate::disk_counts::DiskCounter;
use crate::error::{CliError, Status, panicked};
use crate::filter;
use crate::guests::RecordedGuests;
use crate::run::output::{Output, Stream};
use crate::run::pipeline::{RunPlan, join_recording};
use crate::sources::EventSources;

/// Prints the report.
pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode, CliError> {
    let post_filter = filter::of_recording(args)?;
    let content = Content::of(&args.recording)?;
    if !content.guests.is_empty() && (!args.path.is_empty() || args.slower_than.is_some() || args.errors_only)
    {
        return Err(CliError::usage(
            format!("--path, --slower-than and --errors-only do not work with {}", args.recording.display()),
            "it has the events of guests, and a request of a guest would seldom find QEMU's operation",
            "report without these options",
        ));
    }
    let sinks = destination::open_all(&args.output.to, &args.output.servers)?;
    let output = Output::open(&args.output, Stream::Stdout)?;
    let daemon_spans = match (content.daemon_spans, content.rpc_endpoints) {
        (false, _) => DaemonSpanInput::None,
        (true, false) => DaemonSpanInput::Spans,
        (true, true) => DaemonSpanInput::LinkedSpans,
    };
    let config =
        ReportConfig { slowest: args.output.slowest(), daemon_spans, ..ReportConfig::new(content.begin) };
    let plan = RunPlan {
        scope: TraceScope::All,
        post_filter,
        detail: Detail::Full,
        report: Report::new(config),
        sinks,
        sources: EventSources::default(),
        nbd: content.rpc_endpoints,
        host: content.host(),
        guests: None,
        disk_counts: DiskCounter::default(),
    };
    let (publisher, batches) = channel(CAPACITY_DEFAULT);
    let folder = args.recording.clone();
    let reader = thread::spawn(move || publish(&folder, &publisher));
    let mut outcome = join_recording(batches, plan);
    reader.join().map_err(|panic| panicked("the reader", &*panic))??;
    outcome.report.set_end(content.end);
    let mut status = Status::Success;
    for failure in output.write_report(&outcome) {
        failure.print();
        status = Status::Failed;
    }
    content.notes().iter().for_each(|note| output.note(note));
    Ok(status.code())
}

/// Summary of a recording.
#[derive(Debug, Default)]
struct Content {
    machines: BTreeSet<(NodeId, BootId)>,
    guests: RecordedGuests,
    /// Time of the first and of the last event of the machine that is no name.
    begin: MonotonicNs,
    end: MonotonicNs,
    events: u64,
    daemon_spans: bool,
    rpc_endpoints: bool,
    /// Last counters of each start of the agent.
    starts: BTreeMap<StartEpoch, SourceStats>,
    malformed: u64,
    damaged: u64,
}

impl Content {
    fn of(folder: &Path) -> Result<Content, CliError> {
        let mut content = Content { begin: MonotonicNs(u64::MAX), ..Content::default() };
        content.damaged = each_batch(folder, &mut |batch| {
            match batch {
                Some(batch) => content.add(&batch),
                None => content.malformed += 1,
            }
            true
        })?;
        if content.events == 0 {
            let what = format!("no events in {}", folder.display());
            let why = "it has no files of `blkkin agent --record`, or they are empty";
            return Err(CliError::usage(what, why, "the folder of a recording"));
        }
        if content.machines.len() > 1 {
            let machines: Vec<_> = content
                .machines
                .iter()
                .map(|(node, boot)| format!("machine {:032x}, boot {:032x}", node.0, boot.0))
                .collect();
            return Err(CliError::usage(
                format!("{} has the events of several clocks", folder.display()),
                format!("they are of {}", machines.join("; ")),
                format!("blkkin agent --brokers HOST:PORT --replay {}, with an aggregator", folder.display()),
            ));
        }
        Ok(content)
    }

    /// Returns the machine's node, if it has guests.
    fn host(&self) -> Option<NodeId> {
        self.machines.first().map(|(node, _)| *node).filter(|_| !self.guests.is_empty())
    }

    fn add(&mut self, batch: &EventBatch) {
        self.guests.learn(batch);
        if self.guests.host_of(batch.source.node).is_some() {
            return;
        }
        self.starts.insert(batch.source.epoch, batch.stats.clone());
        for event in &batch.events {
            match event {
                event if event.is_name() => continue,
                LayerEvent::DaemonSpan(_) => self.daemon_spans = true,
                LayerEvent::RpcEndpoint(_) => self.rpc_endpoints = true,
                _ => {}
            }
            self.machines.insert((batch.source.node, batch.source.boot));
            self.events += 1;
            (self.begin, self.end) = (self.begin.min(event.time()), self.end.max(event.time()));
        }
    }

    fn notes(&self) -> Vec<String> {
        let note = |count: u64, text: &str| (count > 0).then(|| format!("{count} {text}"));
        let overwritten = self.starts.values().map(|stats| stats.events_overwritten).sum();
        let all: u64 = self.starts.values().map(SourceStats::lost).sum();
        // The report has those of the last start.
        let of_earlier = all - self.starts.values().last().map_or(0, SourceStats::lost);
        let notes = [
            note(of_earlier, "records were lost by earlier starts of the agent"),
            note(overwritten, "events were overwritten by the flight recorder before any dump had them"),
            note(
                self.damaged,
                "files of the recording end in a damaged entry; what follows in them is dropped",
            ),
            note(self.malformed, "entries of the recording do not decode and are dropped"),
        ];
        notes.into_iter().flatten().collect()
    }
}

/// Publishes every batch that decodes.
fn publish(folder: &Path, publisher: &Publisher<EventBatch>) -> Result<(), CliError> {
    each_batch(folder, &mut |batch| batch.is_none_or(|batch| publisher.publish(batch).is_ok())).map(drop)
}

/// Calls `each` with every batch, and with none for an entry that does not decode, until it returns false. Returns the
/// number of damaged files.
fn each_batch(folder: &Path, each: &mut dyn FnMut(Option<EventBatch>) -> bool) -> Result<u64, CliError> {
    let unreadable = |error: io::Error| {
        let what = format!("cannot read the recording {}", folder.display());
        CliError::usage(what, error, "a folder that `blkkin agent --record` wrote, readable by this user")
    };
    let mut recording = Recording::open(folder, Position::default()).map_err(unreadable)?;
    while let Some((bytes, _)) = recording.read().map_err(unreadable)? {
        if !each(v1::decode(&bytes).ok().map(|decoded| decoded.batch)) {
            break;
        }
    }
    Ok(recording.damaged)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs::OpenOptions;
    use std::io::Write;

    use blkkin_bus::recording::Recorder;
    use blkkin_wire::event::{SyscallEvent, TaskRef};
    use blkkin_wire::ids::{Source, SpanId, TaskId};
    use blkkin_wire::syscalls::SyscallId;

    use super::*;

    /// A batch with one call, of a machine that was started at this boot.
    fn batch(boot: u128, sequence: u64, at: u64) -> Vec<u8> {
        let task = TaskRef { id: TaskId(1), version: 1 };
        let times = [at, at + 10].map(MonotonicNs);
        let call =
            SyscallEvent::bare(SpanId(at), task, SyscallId::by_name("fsync").unwrap(), times[0], times[1]);
        v1::encode(&EventBatch {
            source: Source { node: NodeId(7), boot: BootId(boot), ..Source::NONE },
            sequence,
            events: vec![LayerEvent::Syscall(call)],
            ..EventBatch::tick()
        })
    }

    #[test]
    fn several_clocks_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(folder.path()).unwrap();
        assert!(Content::of(folder.path()).unwrap_err().what.starts_with("no events in "));
        [batch(1, 0, 100), batch(1, 1, 300)].iter().for_each(|batch| recorder.add(batch).unwrap());
        let content = Content::of(folder.path()).unwrap();
        assert_eq!((content.begin, content.end), (MonotonicNs(110), MonotonicNs(310)));
        recorder.add(&batch(2, 0, 5)).unwrap();
        let refused = Content::of(folder.path()).unwrap_err();
        assert!(refused.what.ends_with("has the events of several clocks"), "{refused:?}");
    }

    #[test]
    fn damage_is_counted_and_the_rest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(folder.path()).unwrap();
        recorder.add(&batch(1, 0, 100)).unwrap();
        recorder.add(b"no batch").unwrap();
        recorder.add(&batch(1, 1, 300)).unwrap();
        let file = folder.path().join("00000001.batches");
        OpenOptions::new().append(true).open(file).unwrap().write_all(b"cut").unwrap();
        let content = Content::of(folder.path()).unwrap();
        assert_eq!((content.events, content.malformed, content.damaged), (2, 1, 1));
        assert_eq!(content.notes().len(), 2);
    }
}
