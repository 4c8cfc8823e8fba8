//! Receives the records of guests, and passes them on with those of this host.
//!
//! ```text
//! guest: blkkin agent --port ── virtio-serial ── QEMU ── FOLDER/web1.sock ── thread of the guest ─┬─ Kafka (agent)
//!                                                                                                 ├─ files (agent --record)
//!                                                                                                 └─ join (run, trace)
//! ```
//!
//! *In*: a folder with one Unix socket for each guest, which QEMU listens on (`-chardev
//! socket,server=on,wait=off`). *Out*: records for a [`RecordTarget`]: `blkkin.events`, with this host's key, so that one
//! joiner has the events of both, a recording, or the join of this process; in each record with events the guest's virtual machine,
//! its process here, and bounds of the difference of the clocks, from pings; counters ([`GuestStats`]).
//!
//! *Invariant*: a record is acknowledged to the guest once the target has it, and not before. Nothing is
//! stored here: what the target does not take waits in the guest, and a new start of this process is sent it
//! again.
//!
//! *A guest is not trusted.* A record is decoded before it is sent, and refused with its connection if it is
//! none, if its node is this host's or another guest's, or if it names its own virtual machine: no guest writes
//! into another's traces or under another's name. Each guest
//! has at most [`WINDOW_BYTES`] in flight and sends at most [`BYTES_PER_SECOND`]. Beyond that it waits, and
//! counts its own losses.
//!
//! *Rejected*: a spool of its own (the guest has the records anyway); the guest's own key (the partition of
//! another node's events would join them apart).

mod connection;
mod node_claims;
mod recorded;
mod target;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use blkkin_bus::kafka::{Ack, DeliveryHandle};
use blkkin_tracer::StopSignal;
use blkkin_wire::ids::Source;
use tracing::warn;

use crate::error::{CliError, cannot_spawn};
use crate::log::Limiter;
use crate::service::{MetricFamily, MetricKind};
use node_claims::NodeClaims;
pub(crate) use recorded::RecordedGuests;
pub(crate) use target::{Cluster, LocalJoin, RecordTarget, Recorded, SharedRecorder};

/// Maximum bytes of a guest's records between its port and the cluster.
const WINDOW_BYTES: usize = 4 << 20;
/// Maximum rate of a guest.
const BYTES_PER_SECOND: usize = 16 << 20;
/// Maximum number of guests.
const GUESTS_MAX: usize = 1_024;
/// Interval of looks at the folder, and of attempts to connect.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a guest that was refused, which also limits the log's lines about it.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// Counters of all guests.
#[derive(Debug, Default)]
pub(crate) struct GuestStats {
    connected: AtomicU64,
    /// Connections since the start.
    connections: AtomicU64,
    /// Events that the cluster has.
    delivered: AtomicU64,
    /// Events that the cluster refused for good.
    failed: AtomicU64,
    /// Connections that were ended because of what the guest sent.
    refused: AtomicU64,
    /// Records that guests skipped, by their numbers.
    missing: AtomicU64,
    /// Bytes of guests that were in no frame.
    skipped_bytes: AtomicU64,
}

impl GuestStats {
    fn notes(&self) -> Vec<String> {
        let get = |value: &AtomicU64| value.load(Relaxed);
        if get(&self.connections) == 0 {
            return vec!["guests: none has connected".to_owned()];
        }
        let mut notes = vec![format!("guests: {} events received", get(&self.delivered))];
        let mut add = |number: u64, text: &str| {
            if number > 0 {
                notes.push(format!("guests: {number} {text}"));
            }
        };
        add(get(&self.missing), "records were numbered and not sent");
        add(get(&self.skipped_bytes), "bytes were in no frame, as after a reconnection");
        add(get(&self.refused), "connections were ended because of what a guest sent");
        notes
    }

    pub(crate) fn metric_families(&self) -> Vec<MetricFamily> {
        let get = |value: &AtomicU64| value.load(Relaxed) as f64;
        let outcomes = [("delivered", self.delivered.load(Relaxed)), ("failed", self.failed.load(Relaxed))];
        vec![
            MetricFamily::single(
                MetricKind::Gauge,
                "guests_connected",
                "Guests with a connected port",
                get(&self.connected),
            ),
            MetricFamily::by_label("outcome", "guest_events", "Events of guests", outcomes),
            MetricFamily::single(
                MetricKind::Counter,
                "guests_refused",
                "Connections that were ended because of what the guest sent",
                get(&self.refused),
            ),
            MetricFamily::single(
                MetricKind::Counter,
                "guest_records_missing",
                "Records that a guest numbered and did not send",
                get(&self.missing),
            ),
            MetricFamily::single(
                MetricKind::Counter,
                "guest_bytes_skipped",
                "Bytes of guests that were in no frame, as after a reconnection",
                get(&self.skipped_bytes),
            ),
        ]
    }
}

/// State that the threads of all guests share.
struct Hub {
    target: Box<dyn RecordTarget>,
    /// Source of the host's own events.
    source: Source,
    machines: Vec<String>,
    next_handle: AtomicU64,
    /// Number of the first request to resume of the next connection.
    next_request: AtomicU64,
    /// Records that the target has, each with its outcome once it is known. Those of a connection that
    /// has ended are not here.
    outcomes: Mutex<HashMap<u64, Option<Ack>>>,
    claims: Mutex<NodeClaims>,
    stats: Arc<GuestStats>,
    stop: StopSignal,
}

impl Hub {
    /// Hands a record to the target. None if it has no room now.
    fn send(&self, bytes: &[u8], events: u64) -> Result<Option<DeliveryHandle>, String> {
        let handle = DeliveryHandle(self.next_handle.fetch_add(1, Relaxed));
        self.outcomes().insert(handle.0, None);
        let sent = self.target.send(bytes, events, handle);
        if !matches!(sent, Ok(true)) {
            self.outcomes().remove(&handle.0);
        }
        Ok(sent?.then_some(handle))
    }

    /// Takes the outcome of a record, if it is known.
    fn take_outcome(&self, handle: DeliveryHandle) -> Option<Ack> {
        let mut outcomes = self.outcomes();
        let ack = (*outcomes.get(&handle.0)?)?;
        outcomes.remove(&handle.0);
        Some(ack)
    }

    /// Forgets a record: nothing waits for its outcome.
    fn forget(&self, handle: DeliveryHandle) {
        self.outcomes().remove(&handle.0);
    }

    /// Takes over the outcomes that the target has learnt.
    fn collect_outcomes(&self) {
        let acks = self.target.take_acks();
        let mut outcomes = self.outcomes();
        for (handle, ack) in acks {
            if let Some(outcome) = outcomes.get_mut(&handle.0) {
                *outcome = Some(ack);
            }
        }
    }

    fn outcomes(&self) -> MutexGuard<'_, HashMap<u64, Option<Ack>>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claims(&self) -> MutexGuard<'_, NodeClaims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running threads, and what they count.
pub(crate) struct Guests {
    look: JoinHandle<()>,
    stats: Arc<GuestStats>,
}

impl Guests {
    /// Starts to look for guests in a folder, until `stop`. `source` is of the host's own events; `machines` are the names or
    /// UUIDs of the virtual machines that are received, none: all.
    pub(crate) fn start(
        folder: &Path,
        target: Box<dyn RecordTarget>,
        (source, machines): (Source, Vec<String>),
        stats: Arc<GuestStats>,
        stop: &StopSignal,
    ) -> Result<Guests, CliError> {
        let hub = Arc::new(Hub {
            target,
            source,
            machines,
            next_handle: AtomicU64::new(0),
            // A random number, without a crate for it: std seeds its hashes with one.
            next_request: AtomicU64::new(RandomState::new().hash_one(folder)),
            outcomes: Mutex::default(),
            claims: Mutex::new(NodeClaims::new(source.node)),
            stats: Arc::clone(&stats),
            stop: stop.clone(),
        });
        let folder = folder.to_owned();
        let look = Builder::new().name("guests".to_owned()).spawn(move || look_for_guests(&folder, &hub));
        let look = look.map_err(|error| cannot_spawn("cannot start a thread", &error))?;
        Ok(Guests { look, stats })
    }

    /// Waits for the threads, after `stop`, and returns the summary lines. What the target has not acknowledged stays with the
    /// guests.
    pub(crate) fn join(self) -> Vec<String> {
        // A thread that panicked has printed why.
        let _ = self.look.join();
        self.stats.notes()
    }
}

/// Starts a thread for each socket that appears in the folder, until `stop`.
fn look_for_guests(folder: &Path, hub: &Arc<Hub>) {
    let mut threads: HashMap<PathBuf, JoinHandle<()>> = HashMap::new();
    let (mut problem, no_thread) = (None, Limiter::new("failures"));
    while !hub.stop.wait(LOOK_INTERVAL) {
        hub.target.recover();
        let sockets = match sockets(folder) {
            Ok(sockets) => sockets,
            Err(error) => {
                let error = error.to_string();
                if problem.as_ref() != Some(&error) {
                    warn!("no guests: cannot read {}: {error}", folder.display());
                    problem = Some(error);
                }
                continue;
            }
        };
        problem = None;
        threads.retain(|_, thread| !thread.is_finished());
        for socket in sockets {
            if threads.contains_key(&socket) || threads.len() >= GUESTS_MAX {
                continue;
            }
            let (hub, path) = (Arc::clone(hub), socket.clone());
            let serve = move || connection::serve(&path, &hub);
            match Builder::new().name("guest".to_owned()).spawn(serve) {
                Ok(thread) => drop(threads.insert(socket, thread)),
                Err(error) => {
                    if let Some(suppressed) = no_thread.pass() {
                        warn!("no thread for the guest of {}: {error}{suppressed}", socket.display());
                    }
                }
            }
        }
    }
    for thread in threads.into_values() {
        let _ = thread.join();
    }
}

/// Lists the sockets of a folder.
fn sockets(folder: &Path) -> io::Result<HashSet<PathBuf>> {
    let entries = std::fs::read_dir(folder)?.flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    Ok(sockets.map(|entry| entry.path()).collect())
}
