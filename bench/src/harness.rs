//! A tracer in this process, and load in children of it that it follows or not.

use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blkkin_bus::{CAPACITY_DEFAULT, Next};
use blkkin_tracer::{Ended, StopSignal, Tracer, TracerConfig, TracerError};
use blkkin_wire::batch::{Accounts, EventBatch};

use crate::{affinity, process};

/// A tracer that drains into nothing: what it costs the traced side, without what comes after it.
pub(crate) struct Running {
    stop: StopSignal,
    drain: JoinHandle<(Result<Ended, TracerError>, Duration)>,
    consumer: JoinHandle<()>,
}

/// What a tracer did.
pub(crate) struct Done {
    pub(crate) accounts: Accounts,
    /// Processor time of the thread that drains.
    pub(crate) drain_time: Duration,
}

impl Running {
    /// Drains `tracer` on the CPUs that are not the load's.
    pub(crate) fn start(tracer: Tracer) -> Running {
        let stop = StopSignal::new();
        let given = stop.clone();
        let (events, mut batches) = blkkin_bus::topic::<EventBatch>(CAPACITY_DEFAULT);
        let drain = std::thread::spawn(move || {
            // Where it may not be bound it runs where the kernel puts it.
            let _ = affinity::pin(&affinity::other_cpus());
            let ended = tracer.drain(events, given);
            (ended, process::thread_time())
        });
        let consumer = std::thread::spawn(move || {
            let _ = affinity::pin(&affinity::other_cpus());
            while batches.next(Duration::from_secs(1)) != Next::Closed {}
        });
        Running { stop, drain, consumer }
    }

    /// Ends it; its books.
    pub(crate) fn finish(self) -> Result<Done> {
        self.stop.stop();
        let (ended, drain_time) = self.drain.join().ok().context("the tracer's thread panicked")?;
        self.consumer.join().ok().context("the consumer's thread panicked")?;
        Ok(Done { accounts: ended?.accounts, drain_time })
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
    let _followed = tracer.follow_children_of_this_thread()?;
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
    Tracer::load(&TracerConfig::default()).context("the tracer cannot be loaded")
}
