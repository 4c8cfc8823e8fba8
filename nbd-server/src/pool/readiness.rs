//! Which sockets are ready, and that there is work: one epoll for all threads.
//!
//! *In*: sockets and what is awaited of them. *Out*: one event to one thread. *Invariant*: an event is told once
//! (`EPOLLONESHOT`), so no two threads read one socket; that there is work is told to one thread after it was said last
//! (`EPOLLET`), who wakes the next.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

/// The number of the first connection: below are our own descriptors.
pub(super) const FIRST: u64 = 1;
const WORK: u64 = 0;

pub(super) struct Readiness {
    epoll: OwnedFd,
    work: OwnedFd,
}

/// What is awaited of a socket, or has come true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// What is awaited of one socket at the moment.
#[derive(Debug, Default)]
pub(super) struct Interest(Ready);

pub(super) enum Event {
    Work,
    Socket(u64, Ready),
    Nothing,
}

impl Readiness {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let work = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &work, EventData::new_u64(WORK), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll, work })
    }

    /// Knows it from now on; awaits nothing of it.
    pub(super) fn add(&self, socket: &impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(number), EventFlags::ONESHOT)?)
    }

    /// Awaits this of it, once, and no more what was awaited before. One that was removed meanwhile is over.
    pub(super) fn arm(&self, socket: &impl AsFd, number: u64, what: Ready) {
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN, what.readable);
        flags.set(EventFlags::OUT, what.writable);
        let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(number), flags);
    }

    pub(super) fn remove(&self, socket: &impl AsFd) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// There is work for a thread, and has been put where it finds it.
    pub(super) fn wake(&self) {
        // Never read: it fails after 2^64 times.
        let _ = rustix::io::write(&self.work, &1_u64.to_ne_bytes());
    }

    /// Blocks.
    pub(super) fn wait(&self) -> Event {
        let mut events = Vec::with_capacity(1);
        // Interrupted: there is nothing, as if another thread had been quicker.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
        let Some(event) = events.first() else { return Event::Nothing };
        let (number, flags) = (event.data.u64(), event.flags);
        if number == WORK {
            return Event::Work;
        }
        // Who hung up, or failed, is told by the next read or write.
        let over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let ready = Ready {
            readable: over || flags.contains(EventFlags::IN),
            writable: over || flags.contains(EventFlags::OUT),
        };
        Event::Socket(number, ready)
    }
}

impl Interest {
    pub(super) fn and_readable(&mut self) -> Ready {
        self.0.readable = true;
        self.0
    }

    pub(super) fn and_writable(&mut self) -> Ready {
        self.0.writable = true;
        self.0
    }

    /// This has come true: what came true and was awaited, and what is awaited still.
    pub(super) fn fired(&mut self, ready: Ready) -> (Ready, Ready) {
        let due = Ready {
            readable: ready.readable && self.0.readable,
            writable: ready.writable && self.0.writable,
        };
        self.0.readable &= !ready.readable;
        self.0.writable &= !ready.writable;
        (due, self.0)
    }
}

impl Ready {
    pub(super) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}
