//! A tracer in this process, and load in children of it that it follows or not.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blkkin_bus::{CAPACITY_DEFAULT, Next};
use blkkin_tracer::enrich::nbd::NbdStats;
use blkkin_tracer::enrich::usdt::events::UsdtStats;
use blkkin_tracer::{StopSignal, TraceSummary, Tracer, TracerConfig, TracerError};
use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::event::LayerEvent;

use crate::{affinity, process};

/// A tracer that drains into nothing: what it costs the traced side, without what comes after it.
pub(crate) struct Running {
    stop: StopSignal,
    drain: JoinHandle<(Result<TraceSummary, TracerError>, Duration)>,
    consumer: JoinHandle<[u64; 2]>,
    publishing: Arc<AtomicU64>,
}

/// What a tracer did.
pub(crate) struct Done {
    pub(crate) accounts: SourceStats,
    /// Processor time of the thread that drains.
    pub(crate) drain_time: Duration,
    /// Calls that were made for a span of the load's own.
    pub(crate) in_contexts: u64,
    /// Calls whose thread said attributes.
    pub(crate) with_attributes: u64,
    /// Of requests to NBD servers, and of hits of probes, where these were asked for.
    pub(crate) nbd: Option<NbdStats>,
    pub(crate) hits: Option<UsdtStats>,
}

impl Running {
    /// Drains `tracer` on the CPUs that are not the load's.
    pub(crate) fn start(tracer: Tracer) -> Running {
        let stop = StopSignal::new();
        let given = stop.clone();
        let (events, mut batches) = blkkin_bus::channel::<EventBatch>(CAPACITY_DEFAULT);
        let drain = std::thread::spawn(move || {
            // Where it may not be bound it runs where the kernel puts it.
            let _ = affinity::pin(&affinity::other_cpus());
            let ended = tracer.run(events, given);
            (ended, process::thread_time())
        });
        let publishing = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&publishing);
        let consumer = std::thread::spawn(move || {
            let _ = affinity::pin(&affinity::other_cpus());
            let mut counts = [0; 2];
            loop {
                match batches.next(Duration::from_secs(1)) {
                    Next::Item(batch) => {
                        told.store(batch.stats.contexts_publishing, Ordering::Relaxed);
                        for event in &batch.events {
                            if let LayerEvent::Syscall(call) = event {
                                counts[0] += u64::from(call.context.is_some());
                                counts[1] += u64::from(call.attributes.is_some());
                            }
                        }
                    }
                    Next::Timeout => {}
                    Next::Closed => return counts,
                }
            }
        });
        Running { stop, drain, consumer, publishing }
    }

    /// Processes that were found to publish what their threads work for.
    pub(crate) fn publishing(&self) -> u64 {
        self.publishing.load(Ordering::Relaxed)
    }

    /// Ends it; its books.
    pub(crate) fn finish(self) -> Result<Done> {
        self.stop.stop();
        let (ended, drain_time) = self.drain.join().ok().context("the tracer's thread panicked")?;
        let counts = self.consumer.join().ok().context("the consumer's thread panicked")?;
        let [in_contexts, with_attributes] = counts;
        let TraceSummary { accounts, nbd, usdt: hits, .. } = ended?;
        Ok(Done { accounts, drain_time, in_contexts, with_attributes, nbd, hits })
    }
}

/// Starts `load` of this program with `arguments`.
pub(crate) fn load(arguments: &[&str]) -> Result<Child> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let mut command = Command::new(program);
    command.arg("load").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().context("the load cannot be started")
}

/// As [`load`], followed by `tracer`. To be called from the main thread.
pub(crate) fn traced_load(tracer: &Tracer, arguments: &[&str]) -> Result<Child> {
    let _followed = tracer.trace_children_of_this_thread()?;
    load(arguments)
}

/// Waits for a load's end; what it said.
pub(crate) fn answer(load: Child) -> Result<String> {
    let output = load.wait_with_output().context("the load cannot be waited for")?;
    if !output.status.success() {
        bail!("the load failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A tracer with its defaults.
pub(crate) fn tracer() -> Result<Tracer> {
    tracer_with(&TracerConfig::default())
}

/// One that is told more.
pub(crate) fn tracer_with(config: &TracerConfig) -> Result<Tracer> {
    Tracer::load(config).context("the tracer cannot be loaded")
}
