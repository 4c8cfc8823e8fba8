//! Readiness of sockets and of the task queue: one epoll instance for all threads.
//!
//! *In*: sockets and the interest in them. *Out*: each event, to one thread. *Invariant*: a
//! socket's event is delivered once (`EPOLLONESHOT`), so no two threads read one socket. A wake-up
//! is delivered to one thread (`EPOLLET`), which wakes the next one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

/// Id of the first connection. Smaller ids are those of the pool's own descriptors.
pub(super) const FIRST_ID: u64 = 1;
const TASKS_ID: u64 = 0;

pub(super) struct Readiness {
    epoll: OwnedFd,
    tasks: OwnedFd,
}

/// Set of directions in which a socket is ready, or for which a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// Directions that are armed for one socket.
#[derive(Debug, Default)]
pub(super) struct Interest(Ready);

pub(super) enum Event {
    Task,
    Socket(u64, Ready),
    None,
}

impl Readiness {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let tasks = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &tasks, EventData::new_u64(TASKS_ID), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll, tasks })
    }

    /// Adds a socket without any interest.
    pub(super) fn add(&self, socket: &impl AsFd, id: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(id), EventFlags::ONESHOT)?)
    }

    /// Replaces the interest in a socket, for one event. The call fails for a socket that was
    /// removed meanwhile, whose connection is closed.
    pub(super) fn arm(&self, socket: &impl AsFd, id: u64, interest: Ready) {
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN, interest.readable);
        flags.set(EventFlags::OUT, interest.writable);
        let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(id), flags);
    }

    pub(super) fn remove(&self, socket: &impl AsFd) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Wakes one thread. The caller has queued the task before.
    pub(super) fn wake(&self) {
        // The counter is never read, so the write would fail after 2^64 calls.
        let _ = rustix::io::write(&self.tasks, &1_u64.to_ne_bytes());
    }

    /// Blocks until an event.
    pub(super) fn wait(&self) -> Event {
        let mut events = Vec::with_capacity(1);
        // An interrupted call returns no event, as if another thread had taken it.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
        let Some(event) = events.first() else { return Event::None };
        let (id, flags) = (event.data.u64(), event.flags);
        if id == TASKS_ID {
            return Event::Task;
        }
        // After a hang-up or an error, the next read or write reports it.
        let closed = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let ready = Ready {
            readable: closed || flags.contains(EventFlags::IN),
            writable: closed || flags.contains(EventFlags::OUT),
        };
        Event::Socket(id, ready)
    }
}

impl Interest {
    pub(super) fn add_readable(&mut self) -> Ready {
        self.0.readable = true;
        self.0
    }

    pub(super) fn add_writable(&mut self) -> Ready {
        self.0.writable = true;
        self.0
    }

    /// Removes `ready` from the interest. Returns the part of it that was of interest, and the
    /// remaining interest.
    pub(super) fn take(&mut self, ready: Ready) -> (Ready, Ready) {
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
    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }
}
