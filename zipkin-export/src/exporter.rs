//! Exporter: a queue, a thread, and one destination.
//!
//! *In*: offered spans. *Out*: the same spans at the destination, and [`ExportStats`]. *Invariant*:
//! a producer never waits for a server (spans that find the queue full are dropped and counted),
//! and waits for a file only as long as the disk needs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blkkin_wire::span::Span;

use crate::config::ExportConfig;
use crate::delivery::Transport;
use crate::destination::Destination;
use crate::file::FileSink;
use crate::open_error::OpenError;
use crate::queue::{Queue, QueueObserver, WhenFull};
use crate::sender::Sender;
use crate::stats::ExportStats;
use crate::transport::transport;
use blkkin_span_encoding::Format;

/// Time for the thread to notice that it has to give up. After that, the exporter abandons the
/// thread with its blocked destination.
const GIVE_UP: Duration = Duration::from_millis(200);

/// Exporter of spans to one [`Destination`].
pub struct Exporter {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Exporter {
    /// Starts an exporter. An unwritable file is an error. An unreachable server is not: spans wait
    /// for it, and [`Exporter::last_error`] reports it.
    pub fn open(destination: Destination, config: ExportConfig) -> Result<Exporter, OpenError> {
        match destination {
            Destination::File(path) => {
                let file = FileSink::open(&path)?;
                let partial_path = Some(file.path().to_owned());
                Exporter::start(Sink::File(file), WhenFull::Block, partial_path, &config)
            }
            other => {
                let (post, format) = transport(&other, &config)?;
                Exporter::with_transport(post, format, config)
            }
        }
    }

    /// Starts an exporter with the caller's transport.
    pub fn with_transport(
        post: Box<dyn Transport + Send>,
        format: Format,
        config: ExportConfig,
    ) -> Result<Exporter, OpenError> {
        let sender = Box::new(Sender::new(post, format, &config));
        Exporter::start(Sink::Server(sender), WhenFull::DropNewest, None, &config)
    }

    fn start(
        sink: Sink,
        when_full: WhenFull,
        partial_path: Option<PathBuf>,
        config: &ExportConfig,
    ) -> Result<Exporter, OpenError> {
        let queue = Arc::new(Queue::new(config.queue_spans_max, when_full));
        queue.set_partial_path(partial_path);
        let consumer_queue = Arc::clone(&queue);
        let batch_spans_max = config.batch_spans_max;
        let work = move || consume(sink, &consumer_queue, batch_spans_max);
        let thread = thread::Builder::new().name("zipkin-export".into()).spawn(work);
        Ok(Exporter { queue, thread: Mutex::new(Some(thread.map_err(OpenError::Thread)?)) })
    }

    /// Enqueues spans. Does not wait for a server, but may wait for a disk.
    pub fn offer(&self, spans: Vec<Span>) {
        self.queue.offer(spans);
    }

    /// Returns the current counters.
    pub fn stats(&self) -> ExportStats {
        self.queue.stats()
    }

    /// Returns the current outage, or the last permanent loss. The recovery of a server clears an
    /// outage.
    pub fn last_error(&self) -> Option<String> {
        self.queue.last_error()
    }

    /// Stops the intake, sends queued spans, and returns when this is done or `deadline` has
    /// passed; remaining spans are undeliverable. Nothing is pending in the result.
    pub fn finish(&self, deadline: Duration) -> ExportStats {
        self.queue.drain();
        self.queue.wait_settled(deadline);
        if !self.queue.wait_gone(Duration::ZERO) {
            self.give_up();
            self.queue.set_fault_if_none(|| format!("not all spans were sent within {deadline:?}"));
        }
        if self.queue.wait_gone(Duration::ZERO) {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            // `GoneGuard` has reported a panic of the thread.
            thread.map(JoinHandle::join);
        }
        self.queue.stats()
    }

    /// Stops the intake and waits up to `timeout` for a reachable destination. Returns whether all
    /// spans were sent in that time. If not, sending continues.
    pub fn drains_within(&self, timeout: Duration) -> bool {
        self.queue.drain();
        self.queue.wait_gone(timeout)
    }

    /// Aborts a [`finish`](Exporter::finish) in another thread: remaining spans are undeliverable.
    pub fn abort(&self) {
        self.queue.set_fault_if_none(|| "sending was aborted".to_owned());
        self.queue.abandon();
    }

    /// Returns the partial file while the requested file is incomplete; after
    /// [`finish`](Exporter::finish), permanently. None for a server.
    pub fn partial_path(&self) -> Option<PathBuf> {
        self.queue.partial_path()
    }

    fn give_up(&self) {
        self.queue.abandon();
        if !self.queue.wait_gone(GIVE_UP) {
            self.queue.seal();
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.give_up();
    }
}

enum Sink {
    File(FileSink),
    Server(Box<Sender<Box<dyn Transport + Send>>>),
}

fn consume(mut sink: Sink, queue: &Queue, batch_spans_max: usize) {
    let _guard = GoneGuard(queue);
    if let Sink::Server(server) = &mut sink {
        server.probe(&mut QueueObserver(queue));
    }
    while let Some(spans) = queue.take(batch_spans_max) {
        match &mut sink {
            Sink::File(file) => file.send(&spans, queue),
            // Spans without a result are undeliverable.
            Sink::Server(server) => drop(server.send(&spans, &mut QueueObserver(queue))),
        }
    }
    if let Sink::File(file) = sink {
        file.finish(queue);
    }
}

/// Reports to the queue that the consumer has ended, also after a panic: otherwise a producer that
/// waits for room would wait for ever.
struct GoneGuard<'a>(&'a Queue);

impl Drop for GoneGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set_fault("the exporter's thread panicked: this is a bug in blkkin".into());
        }
        self.0.consumer_gone();
    }
}
