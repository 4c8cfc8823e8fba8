//! Follows a session over several connections to its relay.
//!
//! *In*: a [`Target`]. *Out*: events, and a [`Step`] per call. The follower reconnects to an
//! unreachable relay and continues where reading stopped. The first wait is 50 ms; it doubles with
//! each attempt, up to 2 s.
//!
//! *Invariant*: no event is read twice. The reader knows the end of the last packet of each stream.
//! Events of one stream that were ready when the connection broke wait for the other streams, so
//! the order also holds across connections.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use super::connection::{Connection, LiveError};
use super::reader::{Reader, ReaderSettings, ReaderStats, StreamProblem};
use crate::clock::HostClocks;
use crate::event_view::{EventView, Gap};

const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(2);
/// Limits of the wait after a round without data, which is half a period of the live timer.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(1);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Session to follow.
#[derive(Clone, Debug)]
pub struct Target {
    /// HOST:PORT of the relay's live port.
    pub address: String,
    /// Session's name.
    pub session: String,
    /// Reader's settings.
    pub settings: ReaderSettings,
}

/// Result of one call of [`Follower::step`].
#[derive(Debug)]
pub enum Step {
    /// A round over a connection; the next is due after this time.
    Read(Duration),
    /// No connection: the reason, and the time until the next attempt.
    Unreachable(LiveError, Duration),
    /// The session has ended, and all of it was read.
    Ended,
    /// The session was destroyed while there was no connection. Its unread data is lost and not
    /// counted.
    Destroyed,
    /// A permanent error: an unsupported protocol or format, or a refused session.
    Refused(LiveError),
}

/// Function that opens a connection to the relay.
type Connector = Box<dyn Fn() -> io::Result<TcpStream> + Send>;

/// Reader of a session, with its relay's address.
pub struct Follower {
    target: Target,
    /// `None` to connect to the target's address from this process's network.
    connector: Option<Connector>,
    reader: Reader,
    wait: Duration,
    attached: bool,
}

impl Follower {
    /// Creates a follower, which connects at the first step.
    pub fn new(target: Target) -> Self {
        let reader = Reader::new(&target.session, target.settings, HostClocks::read());
        Self { target, connector: None, reader, wait: RETRY_WAIT_MIN, attached: false }
    }

    /// Opens connections by `connector`, for a relay in another network. The target's address is
    /// then only used in messages.
    #[must_use]
    pub fn connect_by(self, connector: impl Fn() -> io::Result<TcpStream> + Send + 'static) -> Self {
        Self { connector: Some(Box::new(connector)), ..self }
    }

    /// Returns statistics of everything that was read.
    pub fn stats(&self) -> ReaderStats {
        self.reader.stats()
    }

    /// Returns the reader.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns and clears the problems of streams.
    pub fn take_problems(&mut self) -> Vec<StreamProblem> {
        self.reader.take_problems().collect()
    }

    /// Returns the time up to which all events are emitted; `None` without a stream or a
    /// connection.
    pub fn complete_until(&mut self) -> Option<i64> {
        self.reader.complete_until()
    }

    /// Returns and clears the losses found since the last event.
    pub fn take_gap(&mut self) -> Option<Gap> {
        self.reader.take_gap()
    }

    /// Connects if necessary, and reads one round.
    pub fn step(&mut self, out: &mut impl FnMut(&EventView<'_>)) -> Step {
        if !self.reader.is_attached() {
            return self.connect(out);
        }
        match self.reader.round(out) {
            Ok(round) if round.ended => {
                self.reader.finish(out);
                if round.cut_short { Step::Destroyed } else { Step::Ended }
            }
            Ok(round) if round.packets > 0 => Step::Read(Duration::ZERO),
            Ok(_) => {
                let period = Duration::from_micros(u64::from(self.reader.session().live_timer_us));
                Step::Read((period / 2).clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX))
            }
            Err(error) => self.failed(error, out),
        }
    }

    /// Emits the events that wait for their order, and disconnects.
    pub fn finish(&mut self, out: &mut impl FnMut(&EventView<'_>)) {
        self.reader.finish(out);
    }

    fn connect(&mut self, out: &mut impl FnMut(&EventView<'_>)) -> Step {
        let address = &self.target.address;
        let opened = match &self.connector {
            Some(connector) => Connection::over(address, connector()),
            None => Connection::open(address),
        };
        let attached = opened.and_then(|connection| self.reader.attach(connection));
        match attached {
            Ok(()) => {
                (self.wait, self.attached) = (RETRY_WAIT_MIN, true);
                Step::Read(Duration::ZERO)
            }
            Err(error) => self.failed(error, out),
        }
    }

    fn failed(&mut self, error: LiveError, out: &mut impl FnMut(&EventView<'_>)) -> Step {
        self.reader.detach();
        match error {
            // The session existed and no longer exists: it was destroyed.
            LiveError::NoSession { .. } if self.attached => {
                self.reader.finish(out);
                Step::Destroyed
            }
            LiveError::Version(..) | LiveError::Ctf2(_) => Step::Refused(error),
            // A relay keeps a lost reader attached for a moment, and a starting relay may answer
            // incorrectly.
            LiveError::Unreachable { .. }
            | LiveError::NoSession { .. }
            | LiveError::Refused { .. }
            | LiveError::Protocol(_) => {
                // Pending events do not wait for the next connection longer than for an inactive
                // stream.
                self.reader.emit_ready(out);
                let wait = self.wait;
                self.wait = (self.wait * 2).min(RETRY_WAIT_MAX);
                Step::Unreachable(error, wait)
            }
        }
    }
}
