//! Tracer in this process, and load in child processes that it traces or not.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blkkin_bus::{CAPACITY_DEFAULT, Next};
use blkkin_tracer::{StopSignal, TraceSummary, Tracer, TracerConfig, TracerError};
use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::event::LayerEvent;

use crate::{affinity, process};

/// Running tracer whose batches are discarded: the cost of the traced side alone.
pub(crate) struct RunningTracer {
    stop: StopSignal,
    reader: JoinHandle<(Result<TraceSummary, TracerError>, Duration)>,
    consumer: JoinHandle<[u64; 2]>,
    publishing: Arc<AtomicU64>,
}

/// Counters of a stopped tracer, and the cost of its reader thread.
pub(crate) struct TracerResult {
    pub(crate) stats: SourceStats,
    /// Processor time of the reader thread.
    pub(crate) reader_time: Duration,
    /// System calls with a span of the load as parent.
    pub(crate) with_context: u64,
    /// System calls with thread attributes.
    pub(crate) with_attributes: u64,
}

impl RunningTracer {
    /// Runs `tracer` on the CPUs that the load does not use.
    pub(crate) fn start(tracer: Tracer) -> RunningTracer {
        let stop = StopSignal::new();
        let signal = stop.clone();
        let (events, mut batches) = blkkin_bus::channel::<EventBatch>(CAPACITY_DEFAULT);
        let reader = std::thread::spawn(move || {
            // If the affinity cannot be set, the kernel chooses the CPU.
            let _ = affinity::pin(&affinity::other_cpus());
            let ended = tracer.run(events, signal);
            (ended, process::thread_time())
        });
        let publishing = Arc::new(AtomicU64::new(0));
        let publishing_shared = Arc::clone(&publishing);
        let consumer = std::thread::spawn(move || {
            let _ = affinity::pin(&affinity::other_cpus());
            let mut counts = [0; 2];
            loop {
                match batches.next(Duration::from_secs(1)) {
                    Next::Item(batch) => {
                        publishing_shared.store(batch.stats.contexts_publishing, Ordering::Relaxed);
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
        RunningTracer { stop, reader, consumer, publishing }
    }

    /// Returns the number of processes that were found to publish thread contexts.
    pub(crate) fn publishing(&self) -> u64 {
        self.publishing.load(Ordering::Relaxed)
    }

    /// Stops the tracer and returns its result.
    pub(crate) fn finish(self) -> Result<TracerResult> {
        self.stop.stop();
        let (ended, reader_time) = self.reader.join().ok().context("the tracer's thread panicked")?;
        let counts = self.consumer.join().ok().context("the consumer's thread panicked")?;
        let [with_context, with_attributes] = counts;
        let TraceSummary { stats, .. } = ended?;
        Ok(TracerResult { stats, reader_time, with_context, with_attributes })
    }
}

/// Starts `load` of this program with `arguments`.
pub(crate) fn spawn_load(arguments: &[&str]) -> Result<Child> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let mut command = Command::new(program);
    command.arg("load").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().context("the load cannot be started")
}

/// Starts a load like [`spawn_load`], traced by `tracer`. Must be called from the main thread.
pub(crate) fn spawn_traced_load(tracer: &Tracer, arguments: &[&str]) -> Result<Child> {
    let _traced = tracer.trace_children_of_this_thread()?;
    spawn_load(arguments)
}

/// Waits for the end of a load and returns its output.
pub(crate) fn wait_for_output(load: Child) -> Result<String> {
    let output = load.wait_with_output().context("the load cannot be waited for")?;
    if !output.status.success() {
        bail!("the load failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Loads a tracer with the default configuration.
pub(crate) fn load_tracer() -> Result<Tracer> {
    load_tracer_with(&TracerConfig::default())
}

/// Loads a tracer with this configuration.
pub(crate) fn load_tracer_with(config: &TracerConfig) -> Result<Tracer> {
    Tracer::load(config).context("the tracer cannot be loaded")
}
