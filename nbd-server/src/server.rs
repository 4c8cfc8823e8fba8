//! Server: listens, runs handshakes, and passes connections to a backend.
//!
//! *In*: an export, listeners and a [`Config`]. *Out*: replies to clients until the server is
//! stopped. *Invariant*: a client that is slow, silent or faulty during its handshake occupies one
//! thread for at most [`HANDSHAKE_MAX`], and there are at most [`Config::connections`] connections,
//! including those in their handshake. `clients.rs` decides which ones end early.

mod listener;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::accepted::AcceptedConnection;
use crate::client::Client;
use crate::clients::Clients;
use crate::connection_name;
use crate::export::Export;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::protocol::handshake;
use crate::ring::Rings;
use crate::socket::Socket;

pub use self::listener::Listener;
pub use crate::memory::MEMORY_MIN;

/// Time limit of a handshake. Current clients need four round trips.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Time after which a client is disconnected that reads nothing of its replies, or sends nothing of
/// a write's data.
pub const STALL_MAX: Duration = Duration::from_secs(30);
/// Time after which an idle client may be replaced by a new one.
pub const IDLE_MIN: Duration = Duration::from_secs(60);
/// Time that requests in flight have to complete when the server is stopped.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Backend that executes requests, with its number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Thread pool that uses system calls.
    Threads(usize),
    /// io_urings, each with one thread.
    Rings(usize),
}

/// Configuration of the server.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Backend.
    pub mode: Mode,
    /// Largest number of concurrent clients, including those in their handshake. A further one
    /// replaces an idle one, or is disconnected.
    pub connections: usize,
    /// Bytes for the requests of all connections, at least [`MEMORY_MIN`].
    pub memory: usize,
    /// Usually [`STALL_MAX`].
    pub stall_max: Duration,
    /// Usually [`IDLE_MIN`].
    pub idle_min: Duration,
}

/// Running server.
pub struct Server {
    state: Arc<State>,
    listeners: Vec<(Listener, JoinHandle<()>)>,
    sweeper: JoinHandle<()>,
}

struct State {
    export: Arc<Export>,
    backend: Backend,
    memory: Arc<Memory>,
    clients: Clients,
    /// Number of threads that run a handshake, or pass its connection to the backend.
    handshakes: AtomicUsize,
    stopping: AtomicBool,
}

enum Backend {
    Pool(Pool),
    Rings(Rings),
}

impl Server {
    /// Starts to serve `export` on `listeners`.
    pub fn start(export: Export, listeners: Vec<Listener>, config: Config) -> io::Result<Self> {
        let export = Arc::new(export);
        let backend = match config.mode {
            Mode::Threads(threads) => Backend::Pool(Pool::start(Arc::clone(&export), threads)?),
            Mode::Rings(rings) => Backend::Rings(Rings::start(&export, rings)?),
        };
        let state = Arc::new(State {
            export,
            backend,
            memory: Memory::new(config.memory),
            clients: Clients::new(config.connections, config.stall_max, config.idle_min),
            handshakes: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        });
        let own = Arc::clone(&state);
        let sweeper = std::thread::Builder::new().name("nbd-sweep".to_owned()).spawn(move || own.sweep())?;
        let mut server = Self { state, listeners: Vec::new(), sweeper };
        for listener in listeners {
            let (accepts, state) = (listener.try_clone()?, Arc::clone(&server.state));
            let thread = std::thread::Builder::new().name("nbd-accept".to_owned());
            server.listeners.push((listener, thread.spawn(move || state.accept(&accepts))?));
        }
        Ok(server)
    }

    /// Stops accepting connections and reading requests, and waits up to 5 s for requests in
    /// flight.
    pub fn stop(self) {
        let state = &self.state;
        state.stopping.store(true, Ordering::SeqCst);
        for (listener, thread) in self.listeners {
            listener.shutdown();
            // An error is a panic, which the thread has reported.
            let _ = thread.join();
        }
        self.sweeper.thread().unpark();
        let _ = self.sweeper.join();
        let end = Instant::now() + DRAIN_MAX;
        while state.backend.connections() + state.handshakes.load(Ordering::SeqCst) > 0
            && Instant::now() < end
        {
            state.backend.stop_reading();
            std::thread::sleep(Duration::from_millis(5));
        }
        state.backend.stop();
    }
}

impl State {
    fn accept(self: &Arc<Self>, listener: &Listener) {
        while !self.stopping.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok(socket) => self.spawn_handshake(socket),
                // The process may be out of descriptors: other connections may close meanwhile.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Closes stalled connections, until the server stops.
    fn sweep(&self) {
        while !self.stopping.load(Ordering::SeqCst) {
            self.clients.sweep();
            std::thread::park_timeout(self.clients.sweep_interval());
        }
    }

    /// Runs the handshake in its own thread.
    fn spawn_handshake(self: &Arc<Self>, socket: Socket) {
        if self.stopping.load(Ordering::SeqCst) || !self.clients.begin_handshake() {
            return;
        }
        self.handshakes.fetch_add(1, Ordering::SeqCst);
        let state = Arc::clone(self);
        let finish = move || state.handshakes.fetch_sub(1, Ordering::SeqCst);
        let state = Arc::clone(self);
        let run = move || {
            let accepted = state.run_handshake(socket).ok().flatten();
            state.clients.end_handshake(accepted.as_ref().map(|accepted| &accepted.client));
            if let Some(accepted) = accepted {
                // An error means that descriptors or memory are exhausted. The socket is closed,
                // which the client sees.
                let _ = match &state.backend {
                    Backend::Pool(pool) => pool.serve(accepted),
                    Backend::Rings(rings) => rings.serve(accepted),
                };
            }
            drop(state);
            finish();
        };
        let spawned = std::thread::Builder::new().name("nbd-handshake".to_owned()).spawn(run);
        if spawned.is_err() {
            self.clients.end_handshake(None);
            self.handshakes.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Runs the handshake with one client. Returns none if the client aborted it or violated the
    /// protocol.
    fn run_handshake(&self, socket: Socket) -> io::Result<Option<AcceptedConnection>> {
        socket.set_nodelay()?;
        socket.set_keepalive()?;
        // Computed before the handshake: a peer that has closed its socket has no inode.
        let name = connection_name::of_server_socket(&socket).ok();
        let mut stream =
            DeadlineStream { socket: &socket, deadline: Instant::now() + HANDSHAKE_MAX, read: 0 };
        let Ok(Some(session)) = handshake::negotiate(&mut stream, self.export.info()) else {
            return Ok(None);
        };
        let stream_offset = stream.read;
        socket.set_timeout(None)?;
        let client = Client::new(socket, Arc::clone(&self.memory));
        Ok(Some(AcceptedConnection { client, session, name, stream_offset }))
    }
}

/// Blocking stream with one deadline for all its reads and writes. It counts the bytes read.
struct DeadlineStream<'a> {
    socket: &'a Socket,
    deadline: Instant,
    read: u64,
}

impl DeadlineStream<'_> {
    /// Returns the socket with a timeout of the remaining time.
    fn before_deadline(&self) -> io::Result<&Socket> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_timeout(Some(left))?;
        Ok(self.socket)
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.before_deadline()?.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.before_deadline()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Backend {
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

/// Address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Path of a Unix socket. A socket file without a listener is replaced.
    Unix(PathBuf),
    /// `host:port`
    Tcp(String),
}
