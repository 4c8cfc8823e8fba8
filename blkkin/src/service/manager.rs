//! The service manager: what sd_notify(3) and sd_watchdog_enabled(3) of systemd want to hear.
//!
//! Where nobody started us who wants to hear it (`NOTIFY_SOCKET` is not set) all of it does nothing.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use sd_notify::NotifyState;

/// A silence longer than this is an illness where no manager has an opinion.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// So long a start may go on without a word, while what is needed for it is waited for.
const STARTING: Duration = Duration::from_secs(30);

/// Whoever started us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manager {
    /// After so long without a word it ends the service.
    watchdog: Option<Duration>,
}

impl Manager {
    /// As the environment has it.
    pub(crate) fn found() -> Manager {
        Manager { watchdog: sd_notify::watchdog_enabled() }
    }

    /// Everything works; `status` is shown by `systemctl status`.
    pub(crate) fn ready(&self, status: &str) {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Something worth a line.
    pub(crate) fn status(&self, status: &str) {
        tell(&[NotifyState::Status(status)]);
    }

    /// Not ready yet, and not stuck: what is needed is looked for, so the start may go on.
    pub(crate) fn starting(&self, silence: Duration) {
        if silence < self.silence_max() {
            tell(&[NotifyState::ExtendTimeoutUsec(STARTING.as_micros() as u32)]);
        }
        self.alive(silence);
    }

    /// The end was asked for; what is under way may take so long.
    pub(crate) fn stopping(&self, patience: Duration) {
        let patience = u32::try_from(patience.as_micros()).unwrap_or(u32::MAX);
        tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(patience)]);
    }

    /// Work goes on if its last beat is not older than the manager's patience allows.
    pub(crate) fn alive(&self, silence: Duration) {
        if self.watchdog.is_some() && silence < self.silence_max() {
            tell(&[NotifyState::Watchdog]);
        }
    }

    /// How often to say so: a third of the patience.
    pub(crate) fn every(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 3)
    }

    /// How long work may stay away.
    pub(crate) fn silence_max(&self) -> Duration {
        self.watchdog.map_or(SILENCE_MAX, |watchdog| watchdog / 2)
    }
}

/// Descriptors that the manager holds while the service is down, by name. It tells by `FDSTORE` that it does so, and how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store;

impl Store {
    /// If there is one for so many.
    pub(crate) fn found(descriptors: usize) -> Option<Store> {
        let room = std::env::var("FDSTORE").ok()?.parse::<usize>().ok()?;
        let there = std::env::var_os("NOTIFY_SOCKET").is_some() && room >= descriptors;
        there.then_some(Store)
    }

    /// What it has kept of earlier starts.
    pub(crate) fn kept(self) -> Vec<(String, OwnedFd)> {
        let Ok(kept) = sd_notify::listen_fds_with_names() else { return Vec::new() };
        // SAFETY: the manager has opened them for us, and nobody else here knows of them.
        kept.map(|(fd, name)| (name, unsafe { OwnedFd::from_raw_fd(fd) })).collect()
    }

    /// From now on it holds this one too. It is not to look at it: of a map without anything to wait for the kernel says that it
    /// is broken (`bpf_map_poll`, kernel/bpf/syscall.c), and what is broken the manager lets go.
    pub(crate) fn keep(self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let words = [NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")];
        sd_notify::notify_with_fds(&words, &[descriptor])
    }

    /// All of this name it need not hold any more.
    pub(crate) fn forget(self, name: &str) {
        tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
    }
}

fn tell(words: &[NotifyState<'_>]) {
    // A manager that does not listen any more is none of our failures.
    let _ = sd_notify::notify(words);
}
