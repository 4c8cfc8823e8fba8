//! Control events of the main thread: signals, messages of other threads for the operator, and the
//! end of a pipeline.
//!
//! *In*: signals, and events from threads that hold a sender. *Out*: [`ControlEvent`]s, one at a
//! time. *Invariant*: the main thread waits in one place only, on this channel.

pub(crate) mod signals;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::control::signals::ReceivedSignal;
use crate::error::{CliError, cannot_spawn};

/// An event for the main thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlEvent {
    /// A signal arrived.
    Signal(ReceivedSignal),
    /// State of a thread for the operator: it waits for a server, or no longer does.
    Status(String),
    /// The Kafka cluster is usable.
    ClusterReady,
    /// The pipeline has stopped or failed, and has no work left.
    PipelineEnded,
}

/// The receiving end. It exists before CMD starts, so that no signal is missed.
pub(crate) struct ControlReceiver {
    sender: Sender<ControlEvent>,
    receiver: Receiver<ControlEvent>,
}

impl ControlReceiver {
    /// Creates the channel and starts to receive signals.
    pub(crate) fn open() -> Result<ControlReceiver, CliError> {
        ControlReceiver::open_with(&[])
    }

    /// Creates the channel and starts to receive these signals too.
    pub(crate) fn open_with(more: &[libc::c_int]) -> Result<ControlReceiver, CliError> {
        let (sender, receiver) = channel();
        signals::listen(sender.clone(), more)
            .map_err(|error| cannot_spawn("cannot listen to signals", &error))?;
        Ok(ControlReceiver { sender, receiver })
    }

    /// Waits up to `timeout` for the next event.
    pub(crate) fn next(&mut self, timeout: Duration) -> Option<ControlEvent> {
        self.receiver.recv_timeout(timeout).ok()
    }

    /// Returns a sending end, for another thread.
    pub(crate) fn sender(&self) -> Sender<ControlEvent> {
        self.sender.clone()
    }

    /// Splits the channel into its ends.
    pub(crate) fn into_parts(self) -> (Sender<ControlEvent>, Receiver<ControlEvent>) {
        (self.sender, self.receiver)
    }
}

/// A guard that sends [`ControlEvent::PipelineEnded`] on drop, also while its thread panics.
pub(crate) struct ExitNotifier(pub(crate) Sender<ControlEvent>);

impl ExitNotifier {
    /// Reports the state of the thread to the operator.
    pub(crate) fn report_status(&self, status: String) {
        // The receiver is gone once the user has left.
        let _ = self.0.send(ControlEvent::Status(status));
    }
}

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        // As above.
        let _ = self.0.send(ControlEvent::PipelineEnded);
    }
}
