//! Notifications to systemd: sd_notify(3) and sd_watchdog_enabled(3).
//!
//! Without `NOTIFY_SOCKET` all of them do nothing.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use sd_notify::NotifyState;

/// Stall timeout without a watchdog setting.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Extension of the start timeout while the service waits for its cluster.
const START_EXTENSION: Duration = Duration::from_secs(30);

/// The service manager's settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Systemd {
    /// The watchdog timeout: systemd restarts the service without a ping for this long.
    watchdog: Option<Duration>,
}

impl Systemd {
    /// Reads the settings from the environment.
    pub(crate) fn from_env() -> Systemd {
        Systemd { watchdog: sd_notify::watchdog_enabled() }
    }

    /// Reports readiness; `systemctl status` shows `status`.
    pub(crate) fn ready(&self, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Reports a status line.
    pub(crate) fn status(&self, status: &str) {
        notify(&[NotifyState::Status(status)]);
    }

    /// Extends the start timeout while the service waits for its cluster, and pings the watchdog.
    pub(crate) fn extend_start(&self, since_last: Duration) {
        if since_last < self.stall_timeout() {
            notify(&[NotifyState::ExtendTimeoutUsec(START_EXTENSION.as_micros() as u32)]);
        }
        self.ping_watchdog(since_last);
    }

    /// Reports that the service stops, which may take up to `timeout`.
    pub(crate) fn stopping(&self, timeout: Duration) {
        let timeout = u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX);
        notify(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(timeout)]);
    }

    /// Pings the watchdog if the last heartbeat is recent enough.
    pub(crate) fn ping_watchdog(&self, since_last: Duration) {
        if self.watchdog.is_some() && since_last < self.stall_timeout() {
            notify(&[NotifyState::Watchdog]);
        }
    }

    /// Returns the ping interval: a third of the watchdog timeout.
    pub(crate) fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 3)
    }

    /// Returns how long work may stall before the service is unhealthy: half of the watchdog
    /// timeout.
    pub(crate) fn stall_timeout(&self) -> Duration {
        self.watchdog.map_or(STALL_TIMEOUT, |watchdog| watchdog / 2)
    }
}

/// The file descriptor store of systemd, which holds descriptors by name while the service is down.
/// `FDSTORE` announces the store and its capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FdStore;

impl FdStore {
    /// Returns the store if it has room for `descriptors`.
    pub(crate) fn available(descriptors: usize) -> Option<FdStore> {
        let room = std::env::var("FDSTORE").ok()?.parse::<usize>().ok()?;
        let there = std::env::var_os("NOTIFY_SOCKET").is_some() && room >= descriptors;
        there.then_some(FdStore)
    }

    /// Takes the descriptors that earlier starts stored.
    pub(crate) fn take(self) -> Vec<(String, OwnedFd)> {
        let Ok(descriptors) = sd_notify::listen_fds_with_names() else { return Vec::new() };
        // SAFETY: systemd has opened them for this process, and no other code here uses them.
        descriptors.map(|(fd, name)| (name, unsafe { OwnedFd::from_raw_fd(fd) })).collect()
    }

    /// Stores descriptors under one name, by one message. systemd must not poll them: the kernel reports an error for a
    /// map without a poll method (`bpf_map_poll`, kernel/bpf/syscall.c), and systemd drops a descriptor with an error.
    pub(crate) fn store(self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let states = [NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")];
        sd_notify::notify_with_fds(&states, descriptors)
    }

    /// Removes all descriptors of this name.
    pub(crate) fn remove(self, name: &str) {
        notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    // A manager that does not listen is no error.
    let _ = sd_notify::notify(states);
}
