//! Backend with io_uring: each ring has its own thread and connections.
//!
//! *In*: connections whose handshake is complete. *Out*: replies. *Invariant*: memory whose address
//! was passed to the kernel stays allocated and untouched until its completion. A thread ends only
//! when nothing of its ring is in flight.
//!
//! Receives, sends, reads and writes go through the ring, without locks, and one system call
//! submits all that are due. Requests without an io_uring operation, or for which several methods
//! must be tried (trim, zeroes, block status), are executed by two other threads (`offload`).
//!
//! # Parents of the kernel's work
//!
//! A system call that submits many requests has none of them as parent. So while a request is
//! traced, a separate system call submits it under its span. The work that the kernel does in this
//! call (a copy from cached pages, a request to the disk) gets the span as parent. Work that the
//! kernel passes to its own workers (a write that would block, a flush) is submitted under the span
//! and executed elsewhere. Untraced requests are submitted together.

mod connection;
mod file_io;
mod offload;
mod ring_queue;
mod worker;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use crate::accepted::AcceptedConnection;
use crate::export::Export;

use self::offload::{Message, MessageQueue, OffloadPool};
use self::worker::Worker;

/// Rings and their threads.
pub(crate) struct Rings {
    message_queues: Vec<Arc<MessageQueue>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    offload_pool: Arc<OffloadPool>,
    connections: Arc<AtomicUsize>,
    next: AtomicUsize,
}

impl Rings {
    pub(crate) fn start(export: &Arc<Export>, rings: usize) -> io::Result<Self> {
        let offload_pool = OffloadPool::start(export)?;
        let connections = Arc::new(AtomicUsize::new(0));
        let (mut message_queues, mut threads) = (Vec::new(), Vec::new());
        for number in 0..rings {
            let messages = Arc::new(MessageQueue::new()?);
            let (export, offload_pool) = (Arc::clone(export), Arc::clone(&offload_pool));
            let (own_messages, connections) = (Arc::clone(&messages), Arc::clone(&connections));
            // The thread that uses a ring creates it: the ring is set up for a single issuer.
            let (result_sender, result) = mpsc::channel();
            let run = move || match Worker::new(export, offload_pool, own_messages, connections) {
                Ok(worker) => {
                    // The receiver waits, so the send succeeds.
                    let _ = result_sender.send(Ok(()));
                    worker.run();
                }
                Err(error) => drop(result_sender.send(Err(error))),
            };
            threads.push(std::thread::Builder::new().name(format!("nbd-ring-{number}")).spawn(run)?);
            result.recv().map_err(io::Error::other)??;
            message_queues.push(messages);
        }
        let (threads, next) = (Mutex::new(threads), AtomicUsize::new(0));
        Ok(Self { message_queues, threads, offload_pool, connections, next })
    }

    /// Passes the connection to the next ring, round-robin.
    pub(crate) fn serve(&self, accepted: AcceptedConnection) -> io::Result<()> {
        let ring = self.next.fetch_add(1, Ordering::Relaxed) % self.message_queues.len();
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.message_queues[ring].send(Message::Serve(Box::new(accepted)));
        Ok(())
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn stop_reading(&self) {
        self.message_queues.iter().for_each(|queue| queue.send(Message::StopReading));
    }

    /// Closes all connections, and stops and joins the threads.
    pub(crate) fn stop(&self) {
        self.message_queues.iter().for_each(|queue| queue.send(Message::Stop));
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // An error is a panic, which the thread has reported.
            let _ = thread.join();
        }
        self.offload_pool.stop();
    }
}
