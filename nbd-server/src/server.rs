//! The server as a whole: listens, greets, and hands over to who serves.
//!
//! *In*: an export, addresses, a way of serving. *Out*: clients that are served until the server is stopped. *Invariant*: a
//! client that is slow, silent or mad in its handshake holds one thread for [`GREETING_MAX`] at most, and there are no more than
//! [`Config::connections`] of any kind.

mod listener;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::export::Export;
use crate::peer::{self, Name};
use crate::pool::Pool;
use crate::protocol::{Session, handshake};
use crate::ring::Rings;
use crate::socket::Socket;

pub use self::listener::Listener;

/// What a handshake may take. Clients of today need four round trips.
pub const GREETING_MAX: Duration = Duration::from_secs(10);
/// What requests that are under way may take when the server is stopped.
const ENDING_MAX: Duration = Duration::from_secs(5);

/// Who does the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// So many threads, each by system calls.
    Threads(usize),
    /// So many io_urings, each with its thread.
    Rings(usize),
}

/// How it is served.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Who does the requests.
    pub mode: Mode,
    /// Clients at once, those in their handshake too. Further ones are turned away.
    pub connections: usize,
}

/// A client whose handshake is done.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: Socket,
    pub(crate) session: Session,
    /// What both ends call this connection, if that can be known.
    pub(crate) name: Option<Name>,
    /// How many bytes of it were read.
    pub(crate) read: u64,
}

/// A server that runs.
pub struct Server {
    doing: Arc<Doing>,
    accepting: Vec<(Listener, JoinHandle<()>)>,
}

struct Doing {
    export: Arc<Export>,
    serving: Serving,
    greeting: AtomicUsize,
    connections: usize,
    stopping: AtomicBool,
}

enum Serving {
    Pool(Pool),
    Rings(Rings),
}

impl Server {
    /// Serves `export` to who connects to one of these.
    pub fn start(export: Export, listeners: Vec<Listener>, config: Config) -> io::Result<Self> {
        let export = Arc::new(export);
        let serving = match config.mode {
            Mode::Threads(threads) => Serving::Pool(Pool::start(Arc::clone(&export), threads)?),
            Mode::Rings(rings) => Serving::Rings(Rings::start(&export, rings)?),
        };
        let doing = Arc::new(Doing {
            export,
            serving,
            greeting: AtomicUsize::new(0),
            connections: config.connections,
            stopping: AtomicBool::new(false),
        });
        let mut server = Self { doing, accepting: Vec::new() };
        for listener in listeners {
            let (accepts, doing) = (listener.again()?, Arc::clone(&server.doing));
            let thread = std::thread::Builder::new().name("nbd-accept".to_owned());
            server.accepting.push((listener, thread.spawn(move || doing.accept(&accepts))?));
        }
        Ok(server)
    }

    /// Takes nothing more, lets what is under way end, and ends.
    pub fn stop(self) {
        let doing = &self.doing;
        doing.stopping.store(true, Ordering::SeqCst);
        for (listener, thread) in self.accepting {
            listener.shut();
            // It panicked if this fails, and has said so.
            let _ = thread.join();
        }
        let end = Instant::now() + ENDING_MAX;
        while doing.serving.connections() + doing.greeting.load(Ordering::SeqCst) > 0 && Instant::now() < end
        {
            doing.serving.stop_reading();
            std::thread::sleep(Duration::from_millis(5));
        }
        doing.serving.stop();
    }
}

impl Doing {
    fn accept(self: &Arc<Self>, listener: &Listener) {
        while !self.stopping.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok(socket) => self.take(socket),
                // Out of descriptors, perhaps: others end.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Greets it in a thread of its own.
    fn take(self: &Arc<Self>, socket: Socket) {
        let others = self.greeting.fetch_add(1, Ordering::SeqCst) + self.serving.connections();
        let doing = Arc::clone(self);
        let leave = move || doing.greeting.fetch_sub(1, Ordering::SeqCst);
        if others >= self.connections || self.stopping.load(Ordering::SeqCst) {
            leave();
            return;
        }
        let doing = Arc::clone(self);
        let greet = move || {
            if let Ok(Some(accepted)) = greeted(socket, &doing.export) {
                // What fails here is descriptors or memory: the client hears of it by the socket's end.
                let _ = match &doing.serving {
                    Serving::Pool(pool) => pool.serve(accepted),
                    Serving::Rings(rings) => rings.serve(accepted),
                };
            }
            drop(doing);
            leave();
        };
        let spawned = std::thread::Builder::new().name("nbd-greet".to_owned()).spawn(greet);
        if spawned.is_err() {
            self.greeting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// None: it left, or made no sense.
fn greeted(socket: Socket, export: &Export) -> io::Result<Option<Accepted>> {
    socket.prepare()?;
    // Before it can leave: a peer that is gone has no name.
    let name = peer::name(&socket).ok();
    let mut stream = Hurried { socket: &socket, until: Instant::now() + GREETING_MAX, read: 0 };
    let Ok(Some(session)) = handshake::greet(&mut stream, export.offer()) else { return Ok(None) };
    let read = stream.read;
    socket.set_patience(None)?;
    Ok(Some(Accepted { socket, session, name, read }))
}

/// A socket that blocks until a moment, however often it is read; and how much was.
struct Hurried<'a> {
    socket: &'a Socket,
    until: Instant,
    read: u64,
}

impl Hurried<'_> {
    fn hurry(&self) -> io::Result<&Socket> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_patience(Some(left))?;
        Ok(self.socket)
    }
}

impl Read for Hurried<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.hurry()?.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

impl Write for Hurried<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hurry()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Serving {
    fn connections(&self) -> usize {
        match self {
            Self::Pool(pool) => pool.connections(),
            Self::Rings(rings) => rings.connections(),
        }
    }

    fn stop_reading(&self) {
        match self {
            Self::Pool(pool) => pool.stop_reading(),
            Self::Rings(rings) => rings.stop_reading(),
        }
    }

    fn stop(&self) {
        match self {
            Self::Pool(pool) => pool.stop(),
            Self::Rings(rings) => rings.stop(),
        }
    }
}

/// What a listener is told to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A path; what lies there is replaced if it is a socket that nobody listens on.
    Unix(PathBuf),
    /// `host:port`
    Tcp(String),
}
