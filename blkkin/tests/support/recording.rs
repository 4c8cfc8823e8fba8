//! Recordings of a tracer's events, and the traces that the join makes of them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use blkkin_aggregator::join::{JoinConfig, JoinStats, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_bus::{CAPACITY_DEFAULT, Next, channel};
use blkkin_tracer::enrich::nbd::NbdStats;
use blkkin_tracer::{AttachKind, StopSignal, TraceSummary, Tracer, TracerConfig, TracerError};
use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::batch::SourceStats;
use blkkin_wire::event::{
    BioEvent, CommitEvent, DirtyEvent, FaultEvent, FileEvent, LayerEvent, RequestEvent, SyscallEvent,
    TaskEvent,
};
use blkkin_wire::ids::{DeviceId, Pid};
use blkkin_wire::in_flight::FinalState;
use blkkin_wire::page_origin::PageOriginEvent;
use blkkin_wire::process_context::ProcessContextEvent;

use super::gated_process::GatedProcess;
use super::tools::is_guest;

/// A tracer that is recording.
pub(crate) struct Recorder {
    stop: StopSignal,
    drain: JoinHandle<TraceSummary>,
    collect: JoinHandle<(Vec<LayerEvent>, Vec<Trace>, JoinStats)>,
    contexts: Arc<AtomicU64>,
    publishing: Arc<AtomicU64>,
    calls: Arc<Mutex<HashMap<(bool, u64), u64>>>,
    process_contexts: Arc<Mutex<Vec<ProcessContextEvent>>>,
}

/// Events of a tracer, the traces that the join made of them, and the counts of both.
pub(crate) struct Recording {
    pub(crate) events: Vec<LayerEvent>,
    pub(crate) traces: Vec<Trace>,
    pub(crate) stats: SourceStats,
    pub(crate) join: JoinStats,
    pub(crate) final_state: FinalState,
    pub(crate) nbd: Option<NbdStats>,
}

/// Traces these processes until all of them have ended.
pub(crate) fn record(config: &TracerConfig, processes: &mut [&mut GatedProcess]) -> Recording {
    let pids: Vec<Pid> = processes.iter().map(|process| process.pid()).collect();
    let recorder = Recorder::start(config, &pids);
    for process in processes {
        assert_eq!(process.run_to_exit(), 0, "the traced process failed: {}", process.output());
    }
    recorder.finish()
}

/// Traces one process by the default configuration until it has ended.
pub(crate) fn record_one(process: &mut GatedProcess) -> Recording {
    record(&TracerConfig::default(), &mut [process])
}

/// Asserts for a test of system calls that nothing is lost except what the kernel did not show.
#[track_caller]
pub(crate) fn assert_calls_not_lost(losses: &serde_json::Value) {
    let number = |name: &str| losses[name].as_u64().unwrap();
    assert_eq!(number("total"), number("ends_missed") + number("recursion_misses"), "{losses:#}");
}

/// Applies the attach kind of the environment variable, if the test chooses none.
fn with_attach_kind(config: &TracerConfig) -> TracerConfig {
    let attach_kind = || AttachKind::by_name(&std::env::var(crate::common::ATTACH).ok()?);
    TracerConfig { attach: config.attach.or_else(attach_kind), ..config.clone() }
}

/// Checks whether this machine allows this attach kind; the error is the reason to skip the test. A
/// guest allows every kind. Elsewhere a policy may refuse programs that are attached to functions.
pub(crate) fn check_attach_kind(kind: AttachKind) -> Result<(), String> {
    if !kind.uses_functions() || is_guest() {
        return Ok(());
    }
    match Tracer::load(&TracerConfig { attach: Some(kind), ..TracerConfig::default() }) {
        Err(refused @ TracerError::Kind { .. }) => Err(refused.to_string()),
        _ => Ok(()),
    }
}

/// Returns whether the tracepoint of this probe is in a module here, whose types tp_btf does not see.
pub(crate) fn is_in_module(probe: &str) -> bool {
    ["log_force", "log_wait"].contains(&probe) && std::path::Path::new("/sys/kernel/btf/xfs").exists()
}

impl Recorder {
    /// Loads and attaches a tracer, marks these processes, and begins to read.
    pub(crate) fn start(config: &TracerConfig, traced: &[Pid]) -> Recorder {
        let mut tracer = Tracer::load(&with_attach_kind(config)).unwrap();
        if config.dirty_pages {
            tracer.keep_dirty_events();
        }
        for pid in traced {
            tracer.trace_process_tree(*pid).unwrap();
        }
        let (publisher, mut batches) = channel(CAPACITY_DEFAULT);
        let stop = StopSignal::new();
        let stopped = stop.clone();
        let drain = std::thread::spawn(move || tracer.run(publisher, stopped).unwrap());
        let contexts = Arc::new(AtomicU64::new(0));
        let context_counter = contexts.clone();
        let publishing = Arc::new(AtomicU64::new(0));
        let publishing_writer = publishing.clone();
        let calls = Arc::new(Mutex::new(HashMap::new()));
        let call_counter = calls.clone();
        let process_contexts = Arc::new(Mutex::new(Vec::new()));
        let context_writer = process_contexts.clone();
        let collect = std::thread::spawn(move || {
            let (mut events, mut traces) = (Vec::new(), Vec::new());
            let mut joiner = Joiner::new(JoinConfig::default());
            loop {
                match batches.next(Duration::from_secs(1)) {
                    Next::Item(batch) => {
                        publishing_writer.store(batch.stats.contexts_publishing, Relaxed);
                        let has = |event: &&LayerEvent| matches!(event, LayerEvent::Syscall(call) if call.context.is_some());
                        context_counter.fetch_add(batch.events.iter().filter(has).count() as u64, Relaxed);
                        for event in &batch.events {
                            if let LayerEvent::ProcessContext(process) = event {
                                context_writer.lock().unwrap().push(ProcessContextEvent::clone(process));
                            }
                            if let LayerEvent::Syscall(call) = event {
                                let key = (call.context.is_some(), call.args[3]);
                                *call_counter.lock().unwrap().entry(key).or_default() += 1;
                            }
                        }
                        events.extend(batch.events.iter().cloned());
                        joiner.apply(batch, &mut traces);
                    }
                    Next::Timeout => {}
                    Next::Closed => break,
                }
            }
            joiner.finish(&mut traces);
            (events, traces, joiner.stats().clone())
        });
        Recorder { stop, drain, collect, contexts, publishing, calls, process_contexts }
    }

    /// Returns the calls so far that have a thread context.
    pub(crate) fn calls_with_context(&self) -> u64 {
        self.contexts.load(Relaxed)
    }

    /// Returns the number of processes that publish a context, by the tracer's latest batch.
    pub(crate) fn publishing(&self) -> u64 {
        self.publishing.load(Relaxed)
    }

    /// Returns the calls so far with a thread context whose fourth argument is `argument`.
    pub(crate) fn calls_inside(&self, argument: u64) -> u64 {
        self.calls.lock().unwrap().get(&(true, argument)).copied().unwrap_or(0)
    }

    /// Returns the calls so far without a thread context whose fourth argument is `argument`.
    pub(crate) fn calls_outside(&self, argument: u64) -> u64 {
        self.calls.lock().unwrap().get(&(false, argument)).copied().unwrap_or(0)
    }

    /// Returns the process contexts that have been recorded so far.
    pub(crate) fn process_contexts(&self) -> Vec<ProcessContextEvent> {
        self.process_contexts.lock().unwrap().clone()
    }

    /// Detaches and collects the rest.
    pub(crate) fn finish(self) -> Recording {
        self.stop.stop();
        let TraceSummary { stats, final_state, nbd, usdt: _, dirty } = self.drain.join().unwrap();
        assert!(dirty.balances(), "{dirty:?}");
        let (events, traces, join) = self.collect.join().unwrap();
        Recording { events, traces, stats, join, final_state, nbd }
    }
}

impl Recording {
    /// Asserts that the counts of every stage agree and that nothing is missing.
    #[track_caller]
    pub(crate) fn assert_complete(&self) {
        self.assert_balanced();
        assert_eq!(self.stats.lost(), 0, "{:#?}", self.stats);
        let incomplete: Vec<_> = self.traces.iter().filter(|trace| !trace.incomplete.is_empty()).collect();
        assert!(incomplete.is_empty(), "{} traces incomplete: {:#?}", incomplete.len(), incomplete[0]);
    }

    /// Asserts completeness for a test of system calls, where a missed end in the block layer does
    /// not matter. Such an end is of a page of a program that was read from the disk. With caches
    /// dropped all the time, 6 of 38 short scripts had it.
    #[track_caller]
    pub(crate) fn assert_calls_complete(&self) {
        if !self.misses_ends() {
            return self.assert_complete();
        }
        self.assert_balanced();
        self.assert_nothing_else_lost();
        println!("ends in the block layer were missed, and counted: {:?}", self.stats);
    }

    /// Returns whether the end of some bio or request was not seen, or the kernel skipped a
    /// program.
    pub(crate) fn misses_ends(&self) -> bool {
        let stats = &self.stats;
        stats.ends_missed > 0
            || stats.recursion_misses > 0
            || stats.bios_queued != stats.bios.fired
            || stats.requests_started != stats.requests.fired
    }

    /// Asserts that nothing is lost except what the kernel did not show.
    #[track_caller]
    pub(crate) fn assert_nothing_else_lost(&self) {
        let stats = &self.stats;
        assert_eq!(stats.lost(), stats.ends_missed + stats.recursion_misses, "{stats:#?}");
    }

    /// Asserts that every fired record was recorded or counted as dropped, and that every received
    /// record was joined or counted.
    #[track_caller]
    pub(crate) fn assert_balanced(&self) {
        let stats = &self.stats;
        for account in [stats.calls, stats.bios, stats.requests, stats.commits, stats.names, stats.faults] {
            assert!(account.balances(), "{stats:#?}");
        }
        // The tracer counts submissions of asynchronous I/O as calls.
        let read = stats.calls.recorded - stats.calls_excluded;
        let calls = read.saturating_sub(self.join.async_ios.received);
        for (account, received) in [
            (self.join.calls, calls),
            (self.join.async_ios, self.async_ios().count() as u64),
            (self.join.bios, stats.bios.recorded),
            (self.join.requests, stats.requests.recorded),
            (self.join.commits, stats.commits.recorded),
            (self.join.faults, stats.faults.recorded),
        ] {
            assert!(account.balances(), "{:#?}", self.join);
            assert_eq!((account.received, account.pending), (received, 0), "{:#?}", self.join);
        }
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &SyscallEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Syscall(call) => Some(call),
            _ => None,
        })
    }

    /// Returns the calls of this name.
    pub(crate) fn calls_named(&self, name: &str) -> Vec<&SyscallEvent> {
        self.calls().filter(|call| call.call.name() == name).collect()
    }

    /// Returns the submissions of asynchronous I/O.
    pub(crate) fn async_ios(&self) -> impl Iterator<Item = &AsyncIoEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::AsyncIo(io) => Some(io),
            _ => None,
        })
    }

    pub(crate) fn bios(&self) -> impl Iterator<Item = &BioEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Bio(bio) => Some(bio),
            LayerEvent::Pair(pair) => Some(&pair.bio),
            _ => None,
        })
    }

    /// Returns the bios that write to this device, in the order in which they were queued.
    pub(crate) fn writes_to(&self, device: DeviceId) -> Vec<&BioEvent> {
        let is_write = |bio: &&BioEvent| bio.device == device && bio.op.name_for(bio.bytes) == "write";
        let mut bios: Vec<&BioEvent> = self.bios().filter(is_write).collect();
        bios.sort_by_key(|bio| bio.queue);
        bios
    }

    /// Returns the bio that wrote each sector of 512 bytes of this device last.
    pub(crate) fn last_writes(&self, device: DeviceId) -> HashMap<u64, &BioEvent> {
        let sectors = |bio: &BioEvent| bio.sector.0..bio.sector.0 + u64::from(bio.bytes) / 512;
        let of_bio = |bio| sectors(bio).map(move |sector| (sector, bio));
        self.writes_to(device).into_iter().flat_map(of_bio).collect()
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = &RequestEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Request(request) => Some(request),
            LayerEvent::Pair(pair) => Some(&pair.request),
            _ => None,
        })
    }

    /// Returns the devices with recorded or unfinished I/O.
    pub(crate) fn devices(&self) -> HashSet<DeviceId> {
        let unfinished = self.final_state.in_flight.iter().map(|io| io.device);
        let recorded = self.bios().map(|bio| bio.device).chain(self.requests().map(|request| request.device));
        recorded.chain(unfinished).collect()
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = &FaultEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Fault(fault) => Some(fault),
            _ => None,
        })
    }

    pub(crate) fn dirty(&self) -> impl Iterator<Item = &DirtyEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Dirty(dirty) => Some(dirty),
            _ => None,
        })
    }

    pub(crate) fn commits(&self) -> impl Iterator<Item = &CommitEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Commit(commit) => Some(commit),
            _ => None,
        })
    }

    pub(crate) fn page_origins(&self) -> impl Iterator<Item = &PageOriginEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::PageOrigin(origin) => Some(origin.as_ref()),
            _ => None,
        })
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = &TaskEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Task(task) => Some(task),
            _ => None,
        })
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &FileEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::File(file) => Some(file),
            _ => None,
        })
    }

    /// Returns the task's description of a call.
    pub(crate) fn task_of(&self, call: &SyscallEvent) -> &TaskEvent {
        self.tasks().find(|task| task.task == call.task).expect("each call's task is described")
    }

    /// Counts the calls by name.
    pub(crate) fn counts(&self) -> HashMap<&'static str, usize> {
        let mut counts = HashMap::new();
        self.calls().for_each(|call| *counts.entry(call.call.name()).or_default() += 1);
        counts
    }
}
