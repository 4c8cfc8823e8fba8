//! Everything that the tracer said of a run, and what the join made of it.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use blkkin_aggregator::join::{JoinAccounts, JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_bus::{CAPACITY_DEFAULT, Next, channel};
use blkkin_tracer::{AttachKind, StopSignal, TraceSummary, Tracer, TracerConfig, TracerError};
use blkkin_wire::batch::SourceStats;
use blkkin_wire::event::{
    BioEvent, CommitEvent, FileEvent, LayerEvent, RequestEvent, SyscallEvent, TaskEvent,
};
use blkkin_wire::ids::Pid;
use blkkin_wire::in_flight::FinalState;
use blkkin_wire::process_context::ProcessContextEvent;

use super::actor::Actor;

/// A tracer at work.
pub(crate) struct Recorder {
    stop: StopSignal,
    drain: JoinHandle<TraceSummary>,
    collect: JoinHandle<(Vec<LayerEvent>, Vec<Trace>, JoinAccounts)>,
    contexts: Arc<AtomicU64>,
    publishing: Arc<AtomicU64>,
    calls: Arc<Mutex<HashMap<(bool, u64), u64>>>,
    said: Arc<Mutex<Vec<ProcessContextEvent>>>,
}

/// What it said.
pub(crate) struct Recording {
    pub(crate) events: Vec<LayerEvent>,
    pub(crate) traces: Vec<Trace>,
    pub(crate) accounts: SourceStats,
    pub(crate) join: JoinAccounts,
    pub(crate) at_end: FinalState,
}

/// Follows these actors through all that they do.
pub(crate) fn record(config: &TracerConfig, actors: &mut [&mut Actor]) -> Recording {
    let pids: Vec<Pid> = actors.iter().map(|actor| actor.pid()).collect();
    let recorder = Recorder::start(config, &pids);
    for actor in actors {
        assert_eq!(actor.play(), 0, "the actor failed: {}", actor.said());
    }
    recorder.finish()
}

/// Runs that [`until_whole`] tries: where four in five miss an end (a machine that is busy with other things too), thirty
/// in a row are one in a thousand; where one in five does, as on a quiet one, less than one in 10^20.
pub(crate) const RUNS_MAX: usize = 30;
/// Of so many bios and requests one end may be missed. They are missed together, while such a process has its turn on the CPU
/// where requests complete: on a quiet machine one in 350 at most; with six programs more than two CPUs can run, 36 of 2,962 in
/// a run that lasted a few such turns. What loses as many always is told by there being no whole run.
const BEGUN_PER_MISSED: u64 = 10;

/// Repeats a run whose books say that the end of some bio or request was not seen, until one is whole.
///
/// A completion comes in an interrupt, on top of whatever task the CPU happened to run. Now and then the tracepoint
/// fires there (ftrace has the event) and the kernel does not run our program, nor count a recursion. Where this was looked
/// at, on one hosted kernel, it was one process that the kernel hides from eBPF, its system calls too: of 1.4 million
/// completions ftrace had 5 on top of that process's threads, and just these 5 were missed (3 of 3 in an earlier look). So
/// completions that are sent to the submitter's CPU (rq_affinity = 2), and interrupt whatever runs there, are missed
/// 20 times as often as those that are not (0). What is demanded:
/// that the books say so, that it is rare, and that a run without is exact. Any other loss fails here.
///
/// Nor does it run one on top of itself (an interrupt that comes while it is at work on that CPU); that it counts (docs/limits.md, "A program
/// that the kernel skips"), and such a run is repeated too.
///
/// *Weakness*: a fault of ours that loses ends as rarely as this is taken for it.
pub(crate) fn until_whole(mut run: impl FnMut() -> Recording) -> Recording {
    for _ in 0..RUNS_MAX {
        let recording = run();
        if !recording.misses_ends() {
            recording.assert_whole();
            return recording;
        }
        recording.assert_balanced();
        recording.assert_few_ends_missed();
        println!("again, as ends were missed, and counted: {:?}", recording.accounts);
    }
    panic!("ends are missed in each of {RUNS_MAX} runs: that is no chance");
}

/// The same of what a program reports: repeats a run until the kernel has let it see everything, as the run's reports say.
pub(crate) fn until_shown<T>(mut run: impl FnMut() -> T, shown: impl Fn(&T) -> bool) -> T {
    let whole = (0..RUNS_MAX).map(|_| run()).find(shown);
    whole.unwrap_or_else(|| panic!("ends are missed in each of {RUNS_MAX} runs: that is no chance"))
}

/// Whether a report's losses say that the kernel let the programs see everything.
pub(crate) fn shown_all(losses: &serde_json::Value) -> bool {
    let none = |losses: &serde_json::Value, name: &str| losses[name] == 0;
    none(losses, "ends_missed") && none(losses, "recursion_misses") && none(&losses["beside"], "in_flight")
}

/// The same for who asks about system calls: nothing is lost but what the kernel did not show.
#[track_caller]
pub(crate) fn assert_calls_not_lost(losses: &serde_json::Value) {
    let number = |name: &str| losses[name].as_u64().unwrap();
    assert_eq!(number("total"), number("ends_missed") + number("recursion_misses"), "{losses:#}");
}

/// By the kind that the variable names, where a test asks for none.
fn by_kind_asked_for(config: &TracerConfig) -> TracerConfig {
    let asked_for = || AttachKind::by_name(&std::env::var(crate::common::ATTACH).ok()?);
    TracerConfig { attach: config.attach.or_else(asked_for), ..config.clone() }
}

/// Whether this machine lets programs be attached by this kind: each inside a guest; elsewhere a policy may refuse those that are
/// put at functions, and what it says is why a test is skipped.
pub(crate) fn offered(kind: AttachKind) -> Result<(), String> {
    if !kind.uses_functions() || std::env::var_os("BLKKIN_GUEST").is_some() {
        return Ok(());
    }
    match Tracer::load(&TracerConfig { attach: Some(kind), ..TracerConfig::default() }) {
        Err(refused @ TracerError::Kind { .. }) => Err(refused.to_string()),
        _ => Ok(()),
    }
}

impl Recorder {
    /// Attaches, marks these processes, and begins to drain.
    pub(crate) fn start(config: &TracerConfig, follow: &[Pid]) -> Recorder {
        let tracer = Tracer::load(&by_kind_asked_for(config)).unwrap();
        for pid in follow {
            tracer.trace_process_tree(*pid).unwrap();
        }
        let (publisher, mut batches) = channel(CAPACITY_DEFAULT);
        let stop = StopSignal::new();
        let told = stop.clone();
        let drain = std::thread::spawn(move || tracer.run(publisher, told).unwrap());
        let contexts = Arc::new(AtomicU64::new(0));
        let counted = contexts.clone();
        let publishing = Arc::new(AtomicU64::new(0));
        let publish = publishing.clone();
        let calls = Arc::new(Mutex::new(HashMap::new()));
        let seen = calls.clone();
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = said.clone();
        let collect = std::thread::spawn(move || {
            let (mut events, mut traces) = (Vec::new(), Vec::new());
            let mut joiner = Joiner::new(JoinConfig::default());
            loop {
                match batches.next(Duration::from_secs(1)) {
                    Next::Item(batch) => {
                        publish.store(batch.stats.contexts_publishing, Relaxed);
                        let has = |event: &&LayerEvent| matches!(event, LayerEvent::Syscall(call) if call.context.is_some());
                        counted.fetch_add(batch.events.iter().filter(has).count() as u64, Relaxed);
                        for event in &batch.events {
                            if let LayerEvent::ProcessContext(process) = event {
                                heard.lock().unwrap().push(ProcessContextEvent::clone(process));
                            }
                            if let LayerEvent::Syscall(call) = event {
                                let key = (call.context.is_some(), call.args[3]);
                                *seen.lock().unwrap().entry(key).or_default() += 1;
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
            (events, traces, joiner.accounts().clone())
        });
        Recorder { stop, drain, collect, contexts, publishing, calls, said }
    }

    /// Calls so far that were made for a span of the program's.
    pub(crate) fn in_contexts(&self) -> u64 {
        self.contexts.load(Relaxed)
    }

    /// Processes that publish, as the tracer said last.
    pub(crate) fn publishing(&self) -> u64 {
        self.publishing.load(Relaxed)
    }

    /// Calls so far that were made for a span of the program's, whose fourth argument is this.
    pub(crate) fn inside(&self, argument: u64) -> u64 {
        self.calls.lock().unwrap().get(&(true, argument)).copied().unwrap_or(0)
    }

    /// The same of those that were made for none.
    pub(crate) fn outside(&self, argument: u64) -> u64 {
        self.calls.lock().unwrap().get(&(false, argument)).copied().unwrap_or(0)
    }

    /// What processes have said of themselves so far.
    pub(crate) fn said(&self) -> Vec<ProcessContextEvent> {
        self.said.lock().unwrap().clone()
    }

    /// Detaches and takes what is left.
    pub(crate) fn finish(self) -> Recording {
        self.stop.stop();
        let TraceSummary { accounts, at_end, nbd: _, usdt: _ } = self.drain.join().unwrap();
        let (events, traces, join) = self.collect.join().unwrap();
        Recording { events, traces, accounts, join, at_end }
    }
}

impl Recording {
    /// The books of every stage agree, and nothing is missing.
    #[track_caller]
    pub(crate) fn assert_whole(&self) {
        self.assert_balanced();
        assert_eq!(self.accounts.lost(), 0, "{:#?}", self.accounts);
        let incomplete: Vec<_> = self.traces.iter().filter(|trace| !trace.missing.nothing()).collect();
        assert!(incomplete.is_empty(), "{} traces incomplete: {:#?}", incomplete.len(), incomplete[0]);
    }

    /// The same for who asks about system calls. That a page of a program had to be read from the disk, and the kernel did not show the
    /// end of that, is no matter there: with caches dropped all the time, 6 of 38 short scripts had it.
    #[track_caller]
    pub(crate) fn assert_calls_whole(&self) {
        if !self.misses_ends() {
            return self.assert_whole();
        }
        self.assert_balanced();
        self.assert_nothing_else_lost();
        println!("ends in the block layer were missed, and counted: {:?}", self.accounts);
    }

    /// Whether something in the block layer began and its end was not seen, or something else was skipped by the kernel.
    pub(crate) fn misses_ends(&self) -> bool {
        let books = &self.accounts;
        books.ends_missed > 0
            || books.recursion_misses > 0
            || books.bios_queued != books.bios.fired
            || books.requests_started != books.requests.fired
    }

    #[track_caller]
    fn assert_few_ends_missed(&self) {
        let books = &self.accounts;
        let begun = books.bios_queued + books.requests_started;
        let ended = books.bios.fired + books.requests.fired;
        let missed = books.ends_missed.max(begun.saturating_sub(ended));
        assert!(missed * BEGUN_PER_MISSED <= begun, "{books:#?}");
        self.assert_nothing_else_lost();
    }

    /// Than what the kernel did not show.
    #[track_caller]
    fn assert_nothing_else_lost(&self) {
        let books = &self.accounts;
        assert_eq!(books.lost(), books.ends_missed + books.recursion_misses, "{books:#?}");
    }

    /// What was fired was recorded or counted as dropped; what was received was joined or counted.
    #[track_caller]
    pub(crate) fn assert_balanced(&self) {
        let books = &self.accounts;
        for account in [books.calls, books.bios, books.requests, books.commits, books.names] {
            assert!(account.balances(), "{books:#?}");
        }
        for (account, received) in [
            (self.join.calls, books.calls.recorded),
            (self.join.bios, books.bios.recorded),
            (self.join.requests, books.requests.recorded),
            (self.join.commits, books.commits.recorded),
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

    /// The calls of this name.
    pub(crate) fn named(&self, name: &str) -> Vec<&SyscallEvent> {
        self.calls().filter(|call| call.call.name() == name).collect()
    }

    pub(crate) fn bios(&self) -> impl Iterator<Item = &BioEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Bio(bio) => Some(bio),
            LayerEvent::Pair(pair) => Some(&pair.bio),
            _ => None,
        })
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = &RequestEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Request(request) => Some(request),
            LayerEvent::Pair(pair) => Some(&pair.request),
            _ => None,
        })
    }

    pub(crate) fn commits(&self) -> impl Iterator<Item = &CommitEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Commit(commit) => Some(commit),
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

    /// The task as it was described at a call.
    pub(crate) fn task_of(&self, call: &SyscallEvent) -> &TaskEvent {
        self.tasks().find(|task| task.task == call.task).expect("each call's task is described")
    }

    /// How often each call was made.
    pub(crate) fn counts(&self) -> HashMap<&'static str, usize> {
        let mut counts = HashMap::new();
        self.calls().for_each(|call| *counts.entry(call.call.name()).or_default() += 1);
        counts
    }
}
