//! A thread that is created with the capabilities of the process, keeps some of them, and waits for
//! its work.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle, park};

use rustix::thread::CapabilitySet;

use super::capabilities;
use crate::error::{CliError, cannot_spawn};

/// Work of the thread, whose result is `T`.
enum Work<T> {
    Call(Box<dyn FnOnce() + Send>),
    Last(Box<dyn FnOnce() -> T + Send>),
}

/// A thread that waits for its work.
pub(crate) struct ReservedThread<T> {
    work: SyncSender<Work<T>>,
    thread: JoinHandle<T>,
    kept: CapabilitySet,
}

impl<T: Send + 'static> ReservedThread<T> {
    /// Creates the thread. It calls `prepare` with all capabilities of the creator, then drops those
    /// that are not in `kept`.
    pub(crate) fn new(name: &str, kept: CapabilitySet, prepare: fn()) -> Result<Self, CliError> {
        let (work, receiver) = sync_channel::<Work<T>>(1);
        let (dropped, remaining) = sync_channel(1);
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            prepare();
            // The creator waits for the result.
            let _ = dropped.send(capabilities::retain(kept));
            loop {
                match receiver.recv() {
                    Ok(Work::Call(call)) => call(),
                    Ok(Work::Last(work)) => return work(),
                    // The start failed, and the process exits.
                    Err(_) => park(),
                }
            }
        });
        let thread = thread.map_err(|error| cannot_spawn("cannot start a thread", &error))?;
        let kept = remaining.recv().map_err(std::io::Error::other).flatten().map_err(super::not_dropped)?;
        Ok(ReservedThread { work, thread, kept })
    }

    /// Returns the capabilities that the thread has.
    pub(crate) fn kept(&self) -> CapabilitySet {
        self.kept
    }

    /// Runs `call` in the thread and returns its result.
    pub(crate) fn call<R: Send + 'static>(&self, call: impl FnOnce() -> R + Send + 'static) -> R {
        let (result, receiver) = sync_channel(1);
        let call = Box::new(move || drop(result.send(call())));
        self.work.send(Work::Call(call)).expect("invariant: the thread waits for this");
        receiver.recv().expect("invariant: the call returns")
    }

    /// Starts the last work.
    pub(crate) fn run(self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.work.send(Work::Last(Box::new(work))).expect("invariant: the thread waits for this");
        self.thread
    }
}
