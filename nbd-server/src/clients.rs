//! Table of all clients: which of them are disconnected, and when.
//!
//! *In*: clients after their handshake. *Out*: shutdowns of their sockets, which the backends see
//! as the end of the connection. *Invariants*:
//!
//! - A client that makes no progress for the stall limit, while the server waits for it with memory
//!   reserved, is disconnected. A client for which the server does not wait never is: its file may
//!   be slow, or other clients have the memory.
//! - An idle client is disconnected only in exchange for a new one.
//!
//! Requests do not touch the table. Clients count their progress, and a thread compares the counts
//! at intervals. So times are exact to [`sweep_interval`](Clients::sweep_interval).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::client::{Activity, Client, Progress};

/// Longest time between two sweeps.
const SWEEP_MAX: Duration = Duration::from_secs(1);

/// Table of clients.
#[derive(Debug)]
pub(crate) struct Clients {
    table: Mutex<Table>,
    max: usize,
    stall_max: Duration,
    idle_min: Duration,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    /// Number of clients in their handshake, which have no entry yet.
    handshakes: usize,
}

#[derive(Debug)]
struct Entry {
    client: Weak<Client>,
    progress: Progress,
    /// Times at which the progress was first seen.
    received_at: Instant,
    sent_at: Instant,
}

impl Clients {
    /// Creates a table for at most `max` clients.
    pub(crate) fn new(max: usize, stall_max: Duration, idle_min: Duration) -> Self {
        Self { table: Mutex::default(), max, stall_max, idle_min }
    }

    /// Begins the handshake of a further client, in exchange for the one that has been idle the
    /// longest if there is no room. Returns false if there is neither.
    pub(crate) fn begin_handshake(&self) -> bool {
        let mut table = self.lock();
        table.entries.retain(|entry| entry.client.strong_count() > 0);
        let is_full = table.entries.len() + table.handshakes >= self.max;
        if is_full && !self.close_longest_idle(&mut table.entries) {
            return false;
        }
        table.handshakes += 1;
        true
    }

    /// Ends a handshake, of a client that is connected now if it succeeded. Both counts change at
    /// once: a client that is counted twice would take the room of another.
    pub(crate) fn end_handshake(&self, client: Option<&Arc<Client>>) {
        let now = Instant::now();
        let mut table = self.lock();
        table.handshakes -= 1;
        table.entries.extend(client.map(|client| Entry {
            client: Arc::downgrade(client),
            progress: client.progress(),
            received_at: now,
            sent_at: now,
        }));
    }

    /// Returns the time between two sweeps.
    pub(crate) fn sweep_interval(&self) -> Duration {
        (self.stall_max.min(self.idle_min) / 8).min(SWEEP_MAX)
    }

    /// Disconnects the clients that stall.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        self.lock().entries.retain_mut(|entry| {
            let Some(client) = entry.client.upgrade() else { return false };
            let stalls = entry.observe(&client, now).stalls(&client, now, self.stall_max);
            if stalls {
                client.close();
            }
            !stalls
        });
    }

    /// Disconnects the client that has been idle the longest, if that is long enough. Returns
    /// whether there is one.
    fn close_longest_idle(&self, entries: &mut Vec<Entry>) -> bool {
        let now = Instant::now();
        let mut longest: Option<(Instant, usize, Arc<Client>)> = None;
        for (at, entry) in entries.iter_mut().enumerate() {
            let Some(client) = entry.client.upgrade() else { continue };
            let since = entry.observe(&client, now).idle_since(&client);
            let Some(since) = since.filter(|since| now - *since >= self.idle_min) else { continue };
            if longest.as_ref().is_none_or(|(earliest, ..)| since < *earliest) {
                longest = Some((since, at, client));
            }
        }
        let Some((_, at, client)) = longest else { return false };
        client.close();
        entries.swap_remove(at);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Records the progress since the last call.
    fn observe(&mut self, client: &Client, now: Instant) -> Observed {
        // Loaded before the progress: see `Client::count_sent`.
        let activity = client.activity();
        let progress = client.progress();
        if progress.received != self.progress.received {
            self.received_at = now;
        }
        if progress.sent != self.progress.sent {
            self.sent_at = now;
        }
        self.progress = progress;
        Observed { activity, received_at: self.received_at, sent_at: self.sent_at }
    }
}

/// Activity of a client, and when it last made progress.
struct Observed {
    activity: Activity,
    received_at: Instant,
    sent_at: Instant,
}

impl Observed {
    /// Returns whether the server waits for the client, which makes no progress. A socket that is
    /// ready waits for the server.
    fn stalls(&self, client: &Client, now: Instant, max: Duration) -> bool {
        let (since, progress) = match self.activity {
            Activity::Reads => (self.sent_at, PollFlags::OUT),
            Activity::Writes => (self.received_at, PollFlags::IN),
            Activity::Idle | Activity::Served => return false,
        };
        now - since >= max && !client.socket.is_ready(progress)
    }

    fn idle_since(&self, client: &Client) -> Option<Instant> {
        let is_idle = self.activity == Activity::Idle && !client.socket.is_ready(PollFlags::IN);
        is_idle.then(|| self.received_at.max(self.sent_at))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::memory::Memory;
    use crate::socket::Socket;

    #[test]
    fn a_client_takes_one_place_from_its_handshake_to_its_end() {
        let clients = Clients::new(2, Duration::from_secs(30), Duration::from_secs(60));
        let client = || {
            let (socket, _) = UnixStream::pair().unwrap();
            Client::new(Socket::Unix(socket), Memory::new(1 << 30))
        };
        assert!(clients.begin_handshake());
        let first = client();
        clients.end_handshake(Some(&first));
        assert!(clients.begin_handshake());
        assert!(!clients.begin_handshake());
        clients.end_handshake(None);
        assert!(clients.begin_handshake());
        let second = client();
        clients.end_handshake(Some(&second));
        assert!(!clients.begin_handshake());
        drop(first);
        assert!(clients.begin_handshake());
    }
}
