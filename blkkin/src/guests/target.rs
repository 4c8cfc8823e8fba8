//! Targets of guests' records: a cluster, a recording, or the join of this process.
//!
//! *In*: encoded records, each with a handle. *Out*: an outcome for each handle. *Invariant*: a record counts as delivered once
//! the target has it for good: the cluster has stored it, it is in a file, or the join will read it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use blkkin_bus::Publisher;
use blkkin_bus::kafka::{Ack, DeliveryHandle, EventProducer};
use blkkin_bus::recording::Recorder;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::NodeId;
use blkkin_wire::v1;
use tracing::warn;

use crate::log::Limiter;

/// Takes records of all guests.
pub(crate) trait RecordTarget: Send + Sync {
    /// Takes a record. Returns false if it has no room now, and the reason if it takes none for a while.
    fn send(&self, bytes: &[u8], events: u64, handle: DeliveryHandle) -> Result<bool, String>;

    /// Returns the outcomes that are new.
    fn take_acks(&self) -> Vec<(DeliveryHandle, Ack)>;

    /// Mends a target that takes no records any more.
    fn recover(&self);
}

/// Producer of `blkkin.events` with the host's key.
pub(crate) struct Cluster {
    producer: RwLock<EventProducer>,
    domain: NodeId,
    failure_lines: Limiter,
}

impl Cluster {
    pub(crate) fn new(producer: EventProducer, domain: NodeId) -> Cluster {
        Cluster { producer: RwLock::new(producer), domain, failure_lines: Limiter::new("failures") }
    }

    fn producer(&self) -> RwLockReadGuard<'_, EventProducer> {
        self.producer.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordTarget for Cluster {
    fn send(&self, bytes: &[u8], events: u64, handle: DeliveryHandle) -> Result<bool, String> {
        self.producer().try_send(self.domain, bytes, events, handle).map_err(|error| error.why)
    }

    fn take_acks(&self) -> Vec<(DeliveryHandle, Ack)> {
        self.producer().take_acks()
    }

    fn recover(&self) {
        if !self.producer().has_fatal_error() {
            return;
        }
        let mut producer = self.producer.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = producer.recreate()
            && let Some(suppressed) = self.failure_lines.pass()
        {
            warn!("records of guests are not sent: {}{suppressed}", error.why);
        }
    }
}

/// Handles of the records that a target of this process has taken.
#[derive(Default)]
struct Delivered(Mutex<Vec<(DeliveryHandle, Ack)>>);

impl Delivered {
    fn add(&self, handle: DeliveryHandle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((handle, Ack::Delivered));
    }

    fn take(&self) -> Vec<(DeliveryHandle, Ack)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Recording to which several threads write.
#[derive(Clone)]
pub(crate) struct SharedRecorder(Arc<Mutex<Recorder>>);

impl SharedRecorder {
    pub(crate) fn new(recorder: Recorder) -> SharedRecorder {
        SharedRecorder(Arc::new(Mutex::new(recorder)))
    }

    /// Adds a batch.
    pub(crate) fn add(&self, batch: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(batch)
    }
}

/// Recording of this host's own events.
pub(crate) struct Recorded {
    recorder: SharedRecorder,
    delivered: Delivered,
}

impl Recorded {
    pub(crate) fn new(recorder: SharedRecorder) -> Recorded {
        Recorded { recorder, delivered: Delivered::default() }
    }
}

impl RecordTarget for Recorded {
    fn send(&self, bytes: &[u8], _events: u64, handle: DeliveryHandle) -> Result<bool, String> {
        self.recorder.add(bytes).map_err(|error| format!("cannot write the recording: {error}"))?;
        self.delivered.add(handle);
        Ok(true)
    }

    fn take_acks(&self) -> Vec<(DeliveryHandle, Ack)> {
        self.delivered.take()
    }

    fn recover(&self) {}
}

/// Channel to the join of this process.
pub(crate) struct LocalJoin {
    publisher: Publisher<EventBatch>,
    delivered: Delivered,
}

impl LocalJoin {
    pub(crate) fn new(publisher: Publisher<EventBatch>) -> LocalJoin {
        LocalJoin { publisher, delivered: Delivered::default() }
    }
}

impl RecordTarget for LocalJoin {
    fn send(&self, bytes: &[u8], _events: u64, handle: DeliveryHandle) -> Result<bool, String> {
        // The connection has decoded it once, and has added an event since.
        let decoded = v1::decode(bytes).map_err(|error| error.to_string())?;
        self.publisher.publish(decoded.batch).map_err(|_| "tracing has ended".to_owned())?;
        self.delivered.add(handle);
        Ok(true)
    }

    fn take_acks(&self) -> Vec<(DeliveryHandle, Ack)> {
        self.delivered.take()
    }

    fn recover(&self) {}
}
