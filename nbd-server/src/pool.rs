//! Backend with a thread pool: a few threads for all connections.
//!
//! *In*: connections whose handshake is complete. *Out*: replies. *Invariant*: a thread that makes
//! a system call for a request has entered its span, and no thread waits for a client.
//!
//! # Scheduling
//!
//! A thread that finds a connection readable reads everything that has arrived. With 16 requests in
//! flight that is several requests. Then:
//!
//! - *The file is fast* (its pages are cached: recent requests took less than [`INLINE_MAX`]): the
//!   thread executes them itself, one after another, and sends the replies in batches. To wake
//!   another thread would take longer than the system call.
//! - *The file is slow*, or a request may be (a flush): the thread lets another one read on, queues
//!   the requests for all threads, and executes one itself. So as many system calls wait for the
//!   disk as there are threads.
//!
//! *Rejected*: a thread for each connection (16 requests of one client would be executed one after
//! another); one queue for all requests (two wake-ups each); `RWF_NOWAIT` and then a second call
//! without it (two system calls where the client requested one).

mod connection;
mod readiness;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blkkin_ust::SequentialSpans;

use crate::accepted::AcceptedConnection;
use crate::export::Export;
use crate::protocol::Command;
use crate::protocol::request::flags;
use crate::send_queue::QueuedReply;

use self::connection::{Connection, PendingRequest, ReadResult};
use self::readiness::{Event, Readiness, Ready};

/// Mean time of a request below which requests are executed by the thread that read them: about the
/// time that it takes to wake another thread on a busy machine.
const INLINE_MAX: Duration = Duration::from_micros(20);
/// Number of replies that are sent together. The client processes them while the next requests are
/// executed.
const REPLY_BATCH: usize = 8;
/// Number of reads from one connection before the thread serves other connections.
const READS_MAX: usize = 32;

/// Thread pool.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    export: Arc<Export>,
    readiness: Readiness,
    connections: Mutex<HashMap<u64, Arc<PooledConnection>>>,
    next_id: AtomicU64,
    tasks: Mutex<VecDeque<Task>>,
    /// Moving average of the time that a request takes, over about the last 8, in ns.
    mean_ns: AtomicU32,
    stopping: AtomicBool,
}

/// Connection with its id in the pool.
struct PooledConnection {
    id: u64,
    connection: Connection,
    interest: Mutex<readiness::Interest>,
}

enum Task {
    Execute(Arc<PooledConnection>, PendingRequest),
    /// Reads on from a connection, after a pause or after other connections had their turn.
    Read(Arc<PooledConnection>),
}

impl Pool {
    pub(crate) fn start(export: Arc<Export>, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            export,
            readiness: Readiness::new()?,
            connections: Mutex::default(),
            next_id: AtomicU64::new(readiness::FIRST_ID),
            tasks: Mutex::default(),
            mean_ns: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
        });
        let mut handles = Vec::new();
        for number in 0..threads {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("nbd-worker-{number}"));
            handles.push(thread.spawn(move || shared.run())?);
        }
        Ok(Self { shared, threads: Mutex::new(handles) })
    }

    pub(crate) fn serve(&self, accepted: AcceptedConnection) -> io::Result<()> {
        let shared = &self.shared;
        accepted.client.socket.set_nonblocking(true)?;
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(accepted);
        let pooled = Arc::new(PooledConnection { id, connection, interest: Mutex::default() });
        let (pool, waiting) = (Arc::downgrade(shared), Arc::downgrade(&pooled));
        pooled.connection.client.waiter.on_wake(move || {
            if let (Some(shared), Some(pooled)) = (pool.upgrade(), waiting.upgrade()) {
                shared.resume(&pooled);
            }
        });
        lock(&shared.connections).insert(id, Arc::clone(&pooled));
        if let Err(error) = shared.readiness.add(&pooled.connection.client.socket, id) {
            lock(&shared.connections).remove(&id);
            return Err(error);
        }
        shared.await_readable(&pooled);
        Ok(())
    }

    pub(crate) fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// Stops reading. Requests in flight complete.
    pub(crate) fn stop_reading(&self) {
        for pooled in lock(&self.shared.connections).values() {
            pooled.connection.client.socket.shutdown(Shutdown::Read);
        }
    }

    /// Stops and joins the threads.
    pub(crate) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let threads = std::mem::take(&mut *lock(&self.threads));
        self.shared.readiness.wake();
        for thread in threads {
            // An error is a panic, which the thread has reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(self: &Arc<Self>) {
        let mut replies = Vec::new();
        loop {
            match self.readiness.wait() {
                Event::Task => match self.next_task() {
                    Some(Task::Execute(pooled, pending)) => self.execute_one(&pooled, pending, &mut replies),
                    Some(Task::Read(pooled)) => self.read(&pooled, &mut replies),
                    None if self.stopping.load(Ordering::SeqCst) => return self.readiness.wake(),
                    None => {}
                },
                Event::Socket(id, ready) => {
                    let pooled = lock(&self.connections).get(&id).cloned();
                    let Some(pooled) = pooled else { continue };
                    let ready = self.take_ready(&pooled, ready);
                    if ready.writable {
                        self.send(&pooled, &mut replies);
                    }
                    if ready.readable {
                        self.read(&pooled, &mut replies);
                    }
                }
                Event::None => {}
            }
        }
    }

    /// Takes the next task. A thread that was woken wakes the next one while there are tasks, and
    /// also if the pool is stopping.
    fn next_task(&self) -> Option<Task> {
        let mut tasks = lock(&self.tasks);
        let next = tasks.pop_front();
        if !tasks.is_empty() || (next.is_some() && self.stopping.load(Ordering::SeqCst)) {
            self.readiness.wake();
        }
        next
    }

    /// Reads the requests that have arrived, and executes or queues them.
    fn read(self: &Arc<Self>, pooled: &Arc<PooledConnection>, replies: &mut Vec<QueuedReply>) {
        let connection = &pooled.connection;
        let mut batch = Vec::new();
        for _ in 0..READS_MAX {
            let mut decoder = connection.lock_decoder();
            match connection.read_requests(&mut decoder, &mut batch) {
                // This thread keeps the lock: no other one reads until these requests are executed.
                ReadResult::Requests { .. } if self.is_fast(&batch) => {
                    self.execute_all(pooled, &mut batch, replies);
                }
                ReadResult::Requests { more } => {
                    drop(decoder);
                    if more {
                        self.pause(pooled);
                    } else {
                        self.await_readable(pooled);
                    }
                    return self.distribute(pooled, &mut batch, replies);
                }
                ReadResult::WouldBlock => return self.await_readable(pooled),
                ReadResult::OverBudget => return self.pause(pooled),
                ReadResult::Closed => {
                    drop(decoder);
                    self.execute_all(pooled, &mut batch, replies);
                    return self.close_if_finished(pooled);
                }
            }
        }
        self.queue_read(pooled);
    }

    /// Stops reading from a connection until its next request has room.
    fn pause(&self, pooled: &Arc<PooledConnection>) {
        pooled.connection.paused.store(true, Ordering::SeqCst);
        // A request may have ended before the store.
        self.resume(pooled);
    }

    /// Reads on if the connection is paused and its next request may have room.
    fn resume(&self, pooled: &Arc<PooledConnection>) {
        let connection = &pooled.connection;
        if connection.paused.load(Ordering::SeqCst)
            && connection.client.may_read()
            && connection.paused.swap(false, Ordering::SeqCst)
        {
            self.queue_read(pooled);
        }
    }

    fn queue_read(&self, pooled: &Arc<PooledConnection>) {
        lock(&self.tasks).push_back(Task::Read(Arc::clone(pooled)));
        self.readiness.wake();
    }

    /// Executes all requests of `batch` on this thread.
    fn execute_all(
        self: &Arc<Self>,
        pooled: &Arc<PooledConnection>,
        batch: &mut Vec<PendingRequest>,
        replies: &mut Vec<QueuedReply>,
    ) {
        let mut sequence = SequentialSpans::new();
        for pending in batch.drain(..) {
            replies.push(self.execute(pooled, pending, &mut sequence));
            if replies.len() >= REPLY_BATCH {
                // The send belongs to several requests, so it has none of their spans as parent.
                sequence.exit();
                self.send(pooled, replies);
            }
        }
        sequence.exit();
        if !replies.is_empty() {
            self.send(pooled, replies);
        }
    }

    /// Executes one request of `batch` on this thread and queues the others for all threads.
    fn distribute(
        self: &Arc<Self>,
        pooled: &Arc<PooledConnection>,
        batch: &mut Vec<PendingRequest>,
        replies: &mut Vec<QueuedReply>,
    ) {
        let Some(last) = batch.pop() else { return };
        if !batch.is_empty() {
            lock(&self.tasks)
                .extend(batch.drain(..).map(|pending| Task::Execute(Arc::clone(pooled), pending)));
            self.readiness.wake();
        }
        self.execute_one(pooled, last, replies);
    }

    fn execute_one(
        self: &Arc<Self>,
        pooled: &Arc<PooledConnection>,
        pending: PendingRequest,
        replies: &mut Vec<QueuedReply>,
    ) {
        replies.push(self.execute(pooled, pending, &mut SequentialSpans::new()));
        self.send(pooled, replies);
    }

    /// Executes a request. The thread stays in its span until `sequence` switches to another one.
    fn execute(
        &self,
        pooled: &PooledConnection,
        pending: PendingRequest,
        sequence: &mut SequentialSpans,
    ) -> QueuedReply {
        let start = Instant::now();
        pending.span.switch_to(sequence);
        let reply = self.export.execute(pooled.connection.session, &pending.received);
        // The limit keeps an outlier, such as a preempted thread, from dominating the average.
        let took = start.elapsed().min(10 * INLINE_MAX).as_nanos() as u32;
        // Threads can overwrite each other's update: an estimate may lose one.
        let mean = self.mean_ns.load(Ordering::Relaxed);
        self.mean_ns.store(mean - mean / 8 + took / 8, Ordering::Relaxed);
        QueuedReply::new(reply, pending.cost, pending.span)
    }

    /// Returns whether all requests of `batch` are expected to take less than [`INLINE_MAX`].
    fn is_fast(&self, batch: &[PendingRequest]) -> bool {
        let mean = self.mean_ns.load(Ordering::Relaxed);
        u128::from(mean) < INLINE_MAX.as_nanos()
            && batch.iter().all(|pending| {
                let request = &pending.received.request;
                let cheap = matches!(request.command, Command::Read | Command::Write | Command::Cache);
                cheap && !request.has(flags::FUA)
            })
    }

    fn send(self: &Arc<Self>, pooled: &Arc<PooledConnection>, replies: &mut Vec<QueuedReply>) {
        let connection = &pooled.connection;
        if connection.send(replies) {
            let mut interest = lock(&pooled.interest);
            self.arm(pooled, interest.add_writable());
        }
        self.resume(pooled);
        self.close_if_finished(pooled);
    }

    fn await_readable(&self, pooled: &PooledConnection) {
        let mut interest = lock(&pooled.interest);
        self.arm(pooled, interest.add_readable());
    }

    /// Returns the part of `ready` that the connection waits for, and arms the rest of its interest
    /// again.
    fn take_ready(&self, pooled: &PooledConnection, ready: Ready) -> Ready {
        let mut interest = lock(&pooled.interest);
        let (due, remaining) = interest.take(ready);
        if !remaining.is_none() {
            self.arm(pooled, remaining);
        }
        due
    }

    /// Arms the socket. The caller has locked the interest, so the last update of it takes effect.
    fn arm(&self, pooled: &PooledConnection, interest: Ready) {
        self.readiness.arm(&pooled.connection.client.socket, pooled.id, interest);
    }

    /// Closes the connection if it is ending and has no request in flight.
    fn close_if_finished(&self, pooled: &PooledConnection) {
        if pooled.connection.is_finished() {
            pooled.connection.client.socket.shutdown(Shutdown::Both);
            self.readiness.remove(&pooled.connection.client.socket);
            lock(&self.connections).remove(&pooled.id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
