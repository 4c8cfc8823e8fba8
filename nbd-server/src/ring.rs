//! Serving by io_uring: each ring has a thread and connections of its own.
//!
//! *In*: connections whose handshake is done. *Out*: replies. *Invariant*: what the kernel was given the address of lives, and is
//! left alone, until its completion came; a thread ends only when nothing of its ring is under way.
//!
//! Sockets and the file go through the ring: received, read or written, and sent; no locks, one system call for all that
//! is due. What has no operation there, or one that has to be tried in several ways (trim, zeroes, block status), is done by two
//! threads besides (`errands`).
//!
//! # Whose work the kernel does
//!
//! A submission of many requests is a system call of none of them. So while a request is traced, it is submitted by a call of its
//! own, under its span: what the kernel does in it (cached pages are copied there, and the disk is asked there) stands below the
//! request. What the kernel hands to its own workers (a write that would block, a flush) is asked for there and done elsewhere.
//! Untraced, all are submitted together.

mod connection;
mod errands;
mod operation;
mod queue;
mod worker;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use crate::export::Export;
use crate::server::Accepted;

use self::errands::{Errands, Inbox, Mail};
use self::worker::Worker;

/// The rings and their threads.
pub(crate) struct Rings {
    inboxes: Vec<Arc<Inbox>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    errands: Arc<Errands>,
    connections: Arc<AtomicUsize>,
    next: AtomicUsize,
}

impl Rings {
    pub(crate) fn start(export: &Arc<Export>, rings: usize) -> io::Result<Self> {
        let errands = Errands::start(export)?;
        let connections = Arc::new(AtomicUsize::new(0));
        let (mut inboxes, mut threads) = (Vec::new(), Vec::new());
        for number in 0..rings {
            let inbox = Arc::new(Inbox::new()?);
            let (export, errands) = (Arc::clone(export), Arc::clone(&errands));
            let (own, connections) = (Arc::clone(&inbox), Arc::clone(&connections));
            // A ring is made by the thread that uses it: the kernel is told that no other one does.
            let (made, is_made) = mpsc::channel();
            let run = move || match Worker::new(export, errands, own, connections) {
                Ok(worker) => {
                    // Whoever waits for it is there.
                    let _ = made.send(Ok(()));
                    worker.run();
                }
                Err(error) => drop(made.send(Err(error))),
            };
            threads.push(std::thread::Builder::new().name(format!("nbd-ring-{number}")).spawn(run)?);
            is_made.recv().map_err(io::Error::other)??;
            inboxes.push(inbox);
        }
        Ok(Self { inboxes, threads: Mutex::new(threads), errands, connections, next: AtomicUsize::new(0) })
    }

    /// The rings take turns.
    pub(crate) fn serve(&self, accepted: Accepted) -> io::Result<()> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.inboxes.len();
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.inboxes[turn].put(Mail::Serve(Box::new(accepted)));
        Ok(())
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn stop_reading(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.put(Mail::StopReading));
    }

    /// Ends the threads, with whatever is still connected.
    pub(crate) fn stop(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.put(Mail::Stop));
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It panicked if this fails, and has said so.
            let _ = thread.join();
        }
        self.errands.stop();
    }
}
