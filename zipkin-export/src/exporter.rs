//! The exporter: a queue, a thread of its own, and one destination.
//!
//! *In*: spans that are offered. *Out*: the same spans at the destination, and [`ExportAccounts`]. *Invariant*:
//! whoever offers spans never waits for a server (spans that find the queue full are dropped and counted), and
//! waits for a file only as long as the disk needs.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blkkin_wire::span::Span;

use crate::config::ExportConfig;
use crate::delivery::Post;
use crate::destination::Destination;
use crate::file::FileSink;
use crate::format::Format;
use crate::partial::FileError;
use crate::queue::{Hand, Queue, WhenFull};
use crate::sender::Sender;
use crate::server::server;
use crate::telemetry::ExportAccounts;

/// Time for the thread to notice that it is to give up, before it is left alone with a destination that does
/// not let it go.
const GIVE_UP: Duration = Duration::from_millis(200);

/// Why an exporter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is reached by a way that is not this crate's.
    #[error("{0} cannot be opened here")]
    Elsewhere(String),
    /// There is no thread for it.
    #[error("cannot start the exporter's thread: {0}")]
    Thread(io::Error),
}

/// Sends spans to one [`Destination`].
pub struct Exporter {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Exporter {
    /// Starts. A file that cannot be written is an error; a server that is away is none: spans wait for it, and
    /// [`Exporter::last_error`] says so.
    pub fn open(destination: Destination, config: ExportConfig) -> Result<Exporter, OpenError> {
        match destination {
            Destination::File(path) => {
                let file = FileSink::open(&path)?;
                let left_at = Some(file.path().to_owned());
                Exporter::start(Sink::File(file), WhenFull::Block, left_at, &config)
            }
            other => {
                let (post, format) = server(&other, &config)?;
                Exporter::over(post, format, config)
            }
        }
    }

    /// Sends by a way that the caller has.
    pub fn over(
        post: Box<dyn Post + Send>,
        format: Format,
        config: ExportConfig,
    ) -> Result<Exporter, OpenError> {
        let sender = Box::new(Sender::new(post, format, &config));
        Exporter::start(Sink::Server(sender), WhenFull::DropNewest, None, &config)
    }

    fn start(
        sink: Sink,
        when_full: WhenFull,
        left_at: Option<PathBuf>,
        config: &ExportConfig,
    ) -> Result<Exporter, OpenError> {
        let queue = Arc::new(Queue::new(config.queue_spans_max, when_full));
        queue.set_left_at(left_at);
        let theirs = Arc::clone(&queue);
        let batch_spans_max = config.batch_spans_max;
        let work = move || consume(sink, &theirs, batch_spans_max);
        let thread = thread::Builder::new().name("zipkin-export".into()).spawn(work);
        Ok(Exporter { queue, thread: Mutex::new(Some(thread.map_err(OpenError::Thread)?)) })
    }

    /// Takes spans to be sent. Does not wait for a server; may wait for a disk.
    pub fn offer(&self, spans: Vec<Span>) {
        self.queue.offer(spans);
    }

    /// The books at this moment.
    pub fn accounts(&self) -> ExportAccounts {
        self.queue.accounts()
    }

    /// What is wrong now, or what went wrong for good; a server that is back is no error any more.
    pub fn last_error(&self) -> Option<String> {
        self.queue.trouble()
    }

    /// Takes nothing more, sends what waits, and returns when that is done or `deadline` has passed; what is
    /// left then is undeliverable. Nothing is pending in what it returns.
    pub fn finish(&self, deadline: Duration) -> ExportAccounts {
        self.queue.drain();
        self.queue.wait_settled(deadline);
        if !self.queue.wait_gone(Duration::ZERO) {
            self.give_up();
            self.queue.set_fault_if_none(|| format!("not all spans were sent within {deadline:?}"));
        }
        if self.queue.wait_gone(Duration::ZERO) {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            // A panic of the thread is told by `GoneGuard`.
            thread.map(JoinHandle::join);
        }
        self.queue.accounts()
    }

    /// The same for as long as it takes a destination that is there; whether that was enough. If not, the sending
    /// goes on.
    pub fn settles_within(&self, patience: Duration) -> bool {
        self.queue.drain();
        self.queue.wait_gone(patience)
    }

    /// Ends a [`finish`](Exporter::finish) that another thread waits for: what is left is undeliverable.
    pub fn break_off(&self) {
        self.queue.set_fault_if_none(|| "the sending was broken off".to_owned());
        self.queue.abandon();
    }

    /// The file that holds the spans while the one asked for is not whole; after [`finish`](Exporter::finish), for
    /// good. None for a server.
    pub fn left_at(&self) -> Option<PathBuf> {
        self.queue.left_at()
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
    Server(Box<Sender<Box<dyn Post + Send>>>),
}

fn consume(mut sink: Sink, queue: &Queue, batch_spans_max: usize) {
    let _gone = GoneGuard(queue);
    if let Sink::Server(server) = &mut sink {
        server.probe(&mut Hand(queue));
    }
    while let Some(spans) = queue.take(batch_spans_max) {
        match &mut sink {
            Sink::File(file) => file.send(&spans, queue),
            // What has no verdict when it gives up is undeliverable.
            Sink::Server(server) => drop(server.send(&spans, &mut Hand(queue))),
        }
    }
    if let Sink::File(file) = sink {
        file.finish(queue);
    }
}

/// Tells the queue that nobody takes from it any more, however that came about: a producer that waits for room
/// would else wait for ever.
struct GoneGuard<'a>(&'a Queue);

impl Drop for GoneGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set_fault("the exporter's thread panicked: this is an error of blkkin".into());
        }
        self.0.consumer_gone();
    }
}
