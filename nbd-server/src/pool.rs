//! Serving by threads: a few of them for all connections.
//!
//! *In*: connections whose handshake is done. *Out*: replies. *Invariant*: a thread that does a system call for a request has
//! entered its span; no thread ever waits for a client.
//!
//! # Who does what
//!
//! A thread that finds a connection readable reads all that has come, which with 16 requests in flight is several. Then:
//!
//! - *The file is quick* (its pages are cached: the last calls took less than [`QUICK`]): it does them itself, one after
//!   another, and sends replies a few at a time. To wake another thread would take longer than the call.
//! - *The file is slow*, or a request may be (a flush): it lets another thread read on, shares the requests with all threads,
//!   and does one itself. So as many calls wait for the disk as there are threads.
//!
//! *Rejected*: a thread for each connection (one client with 16 in flight would see them done one by one), one queue for all
//! requests (two wake-ups each), `RWF_NOWAIT` and then again without (two system calls where one is asked for).

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

use crate::export::Export;
use crate::outbox::Reply;
use crate::protocol::Command;
use crate::protocol::request::flags;
use crate::server::Accepted;

use self::connection::{Begun, Came, Connection};
use self::readiness::{Event, Readiness, Ready};

/// A request that takes less is done where it was read: about what waking another thread takes on a busy machine.
const QUICK: Duration = Duration::from_micros(20);
/// Replies that are sent together, unless there are fewer: the client works on them meanwhile.
const REPLIES_TOGETHER: usize = 8;
/// So many looks at one connection before others have their turn.
const TURNS_MAX: usize = 32;

/// The threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    export: Arc<Export>,
    readiness: Readiness,
    connections: Mutex<HashMap<u64, Arc<Served>>>,
    numbers: AtomicU64,
    work: Mutex<VecDeque<Work>>,
    /// ns that a request takes: the mean over about the last 8.
    pace: AtomicU32,
    stopping: AtomicBool,
}

/// A connection, and what it is called here.
struct Served {
    number: u64,
    connection: Connection,
    interest: Mutex<readiness::Interest>,
}

enum Work {
    Do(Arc<Served>, Begun),
    /// Take on what was not taken when too much was under way.
    GoOn(Arc<Served>),
}

impl Pool {
    pub(crate) fn start(export: Arc<Export>, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            export,
            readiness: Readiness::new()?,
            connections: Mutex::default(),
            numbers: AtomicU64::new(readiness::FIRST),
            work: Mutex::default(),
            pace: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
        });
        let mut running = Vec::new();
        for number in 0..threads {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("nbd-worker-{number}"));
            running.push(thread.spawn(move || shared.work())?);
        }
        Ok(Self { shared, threads: Mutex::new(running) })
    }

    pub(crate) fn serve(&self, accepted: Accepted) -> io::Result<()> {
        let shared = &self.shared;
        accepted.socket.set_nonblocking(true)?;
        let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(accepted);
        let served = Arc::new(Served { number, connection, interest: Mutex::default() });
        held(&shared.connections).insert(number, Arc::clone(&served));
        if let Err(error) = shared.readiness.add(&served.connection.socket, number) {
            held(&shared.connections).remove(&number);
            return Err(error);
        }
        shared.await_readable(&served);
        Ok(())
    }

    pub(crate) fn connections(&self) -> usize {
        held(&self.shared.connections).len()
    }

    /// Nothing more is read. What is under way ends.
    pub(crate) fn stop_reading(&self) {
        for served in held(&self.shared.connections).values() {
            served.connection.socket.shut(Shutdown::Read);
        }
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let threads = std::mem::take(&mut *held(&self.threads));
        self.shared.readiness.wake();
        for thread in threads {
            // It panicked if this fails, and has said so.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(self: &Arc<Self>) {
        let mut replies = Vec::new();
        loop {
            match self.readiness.wait() {
                Event::Work => match self.next() {
                    Some(Work::Do(served, begun)) => self.do_one(&served, begun, &mut replies),
                    Some(Work::GoOn(served)) => self.read(&served, &mut replies),
                    None if self.stopping.load(Ordering::SeqCst) => return self.readiness.wake(),
                    None => {}
                },
                Event::Socket(number, ready) => {
                    let served = held(&self.connections).get(&number).cloned();
                    let Some(served) = served else { continue };
                    let ready = self.fired(&served, ready);
                    if ready.writable {
                        self.send(&served, &mut replies);
                    }
                    if ready.readable {
                        self.read(&served, &mut replies);
                    }
                }
                Event::Nothing => {}
            }
        }
    }

    /// What a thread was woken for. One that is woken wakes the next, as long as there is work, or an end.
    fn next(&self) -> Option<Work> {
        let mut work = held(&self.work);
        let next = work.pop_front();
        if !work.is_empty() || (next.is_some() && self.stopping.load(Ordering::SeqCst)) {
            self.readiness.wake();
        }
        next
    }

    /// Reads what has come, and does it or shares it.
    fn read(self: &Arc<Self>, served: &Arc<Served>, replies: &mut Vec<Reply>) {
        let connection = &served.connection;
        let mut batch = Vec::new();
        for _ in 0..TURNS_MAX {
            let mut intake = connection.reading();
            match connection.take(&mut intake, &mut batch) {
                Came::Some { .. } if self.is_quick(&batch) => self.do_all(served, &mut batch, replies),
                Came::Some { more } => {
                    drop(intake);
                    if more {
                        self.pause(served);
                    } else {
                        self.await_readable(served);
                    }
                    return self.share(served, &mut batch, replies);
                }
                Came::Nothing => return self.await_readable(served),
                Came::TooMuch => return self.pause(served),
                Came::End => {
                    drop(intake);
                    self.do_all(served, &mut batch, replies);
                    return self.end(served);
                }
            }
        }
        self.go_on(served);
    }

    /// Until something of what is under way has ended, nobody reads on.
    fn pause(&self, served: &Arc<Served>) {
        served.connection.paused.store(true, Ordering::SeqCst);
        // It may have ended before that was said.
        self.resume(served);
    }

    /// If it was paused, and another request may begin.
    fn resume(&self, served: &Arc<Served>) {
        let connection = &served.connection;
        if connection.paused.load(Ordering::SeqCst)
            && connection.allowance.is_left()
            && connection.paused.swap(false, Ordering::SeqCst)
        {
            self.go_on(served);
        }
    }

    fn go_on(&self, served: &Arc<Served>) {
        held(&self.work).push_back(Work::GoOn(Arc::clone(served)));
        self.readiness.wake();
    }

    /// All of them, here and now.
    fn do_all(self: &Arc<Self>, served: &Arc<Served>, batch: &mut Vec<Begun>, replies: &mut Vec<Reply>) {
        let mut turns = SequentialSpans::new();
        for begun in batch.drain(..) {
            replies.push(self.done(served, begun, &mut turns));
            if replies.len() >= REPLIES_TOGETHER {
                // Sending is for none of them alone.
                turns.exit();
                self.send(served, replies);
            }
        }
        turns.exit();
        if !replies.is_empty() {
            self.send(served, replies);
        }
    }

    /// One of them here, the others wherever a thread has time.
    fn share(self: &Arc<Self>, served: &Arc<Served>, batch: &mut Vec<Begun>, replies: &mut Vec<Reply>) {
        let Some(last) = batch.pop() else { return };
        if !batch.is_empty() {
            held(&self.work).extend(batch.drain(..).map(|begun| Work::Do(Arc::clone(served), begun)));
            self.readiness.wake();
        }
        self.do_one(served, last, replies);
    }

    fn do_one(self: &Arc<Self>, served: &Arc<Served>, begun: Begun, replies: &mut Vec<Reply>) {
        replies.push(self.done(served, begun, &mut SequentialSpans::new()));
        self.send(served, replies);
    }

    /// Does it. The thread works for it until it turns to another one.
    fn done(&self, served: &Served, begun: Begun, turns: &mut SequentialSpans) -> Reply {
        let start = Instant::now();
        begun.op.take(turns);
        let answer = self.export.answer(served.connection.session, &begun.incoming);
        // One that was held up by something else says little of the next ones.
        let took = start.elapsed().min(10 * QUICK).as_nanos() as u32;
        // Written by several threads: one that is overwritten was as good a guess.
        let pace = self.pace.load(Ordering::Relaxed);
        self.pace.store(pace - pace / 8 + took / 8, Ordering::Relaxed);
        Reply::new(answer, begun.cost, begun.op)
    }

    fn is_quick(&self, batch: &[Begun]) -> bool {
        let pace = self.pace.load(Ordering::Relaxed);
        u128::from(pace) < QUICK.as_nanos()
            && batch.iter().all(|begun| {
                let request = &begun.incoming.request;
                let cheap = matches!(request.command, Command::Read | Command::Write | Command::Cache);
                cheap && !request.has(flags::FUA)
            })
    }

    fn send(self: &Arc<Self>, served: &Arc<Served>, replies: &mut Vec<Reply>) {
        let connection = &served.connection;
        if connection.send(replies) {
            let mut interest = held(&served.interest);
            self.arm(served, interest.and_writable());
        }
        self.resume(served);
        self.end(served);
    }

    fn await_readable(&self, served: &Served) {
        let mut interest = held(&served.interest);
        self.arm(served, interest.and_readable());
    }

    /// What of it is due; what else was awaited is awaited again.
    fn fired(&self, served: &Served, ready: Ready) -> Ready {
        let mut interest = held(&served.interest);
        let (due, kept) = interest.fired(ready);
        if !kept.is_nothing() {
            self.arm(served, kept);
        }
        due
    }

    /// Called with the interest held: what was said last is what counts.
    fn arm(&self, served: &Served, what: Ready) {
        self.readiness.arm(&served.connection.socket, served.number, what);
    }

    /// If nothing is under way any more.
    fn end(&self, served: &Served) {
        if served.connection.is_over() {
            served.connection.socket.shut(Shutdown::Both);
            self.readiness.remove(&served.connection.socket);
            held(&self.connections).remove(&served.number);
        }
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
