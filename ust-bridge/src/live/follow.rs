//! Follows a session over connections: a relay that went away is looked for again, and reading goes on where it stopped.
//!
//! What was read is known by stream and by the end of its last packet, so nothing is read twice; and what one stream had
//! ready when the connection broke waits for the others, so the order holds over it. Between attempts it waits
//! 50 ms, then twice as long each time, up to 2 s.

use std::time::Duration;

use super::connection::{Connection, LiveError};
use super::reader::{Counts, Reader, Settings, Trouble};
use crate::clock::Here;
use crate::view::{Gap, View};

const WAIT_FIRST: Duration = Duration::from_millis(50);
const WAIT_MOST: Duration = Duration::from_secs(2);
/// Between two rounds that brought nothing: at most half a period of the live timer, at least this.
const ASK_LEAST: Duration = Duration::from_millis(1);
const ASK_MOST: Duration = Duration::from_millis(100);

/// What is followed.
#[derive(Clone, Debug)]
pub struct Target {
    /// HOST:PORT of the relay's live port.
    pub address: String,
    /// The session's name.
    pub session: String,
    /// How it is read.
    pub settings: Settings,
}

/// What happened since the last call.
#[derive(Debug)]
pub enum Step {
    /// A round was made over a connection; ask again after this long.
    Read(Duration),
    /// There is no connection: why, and how long until the next attempt.
    Away(LiveError, Duration),
    /// The session is over, and all of it was read.
    Over,
    /// The session was destroyed while there was no connection: what the relay still had of it is gone, and not counted.
    Gone,
    /// It will not get better: another protocol, a session that is refused, another format.
    Refused(LiveError),
}

/// A session, and how to come to its relay.
pub struct Follower {
    target: Target,
    reader: Reader,
    wait: Duration,
    attached: bool,
}

impl Follower {
    /// Connects at the first step.
    pub fn new(target: Target) -> Self {
        let reader = Reader::new(&target.session, target.settings, Here::read());
        Self { target, reader, wait: WAIT_FIRST, attached: false }
    }

    /// What was read so far.
    pub fn counts(&self) -> Counts {
        self.reader.counts()
    }

    /// What reads the session.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// What is wrong with parts of the session, since the last time it was asked for.
    pub fn troubles(&mut self) -> Vec<Trouble> {
        self.reader.troubles().collect()
    }

    /// All events before are given out; none while there is no stream, or no connection.
    pub fn known_until(&mut self) -> Option<i64> {
        self.reader.known_until()
    }

    /// What was found to be lost since the last event that was given out.
    pub fn take_gap(&mut self) -> Option<Gap> {
        self.reader.take_gap()
    }

    /// Connects if need be, makes one round, and says how long to wait until the next.
    pub fn step(&mut self, out: &mut impl FnMut(&View<'_>)) -> Step {
        if !self.reader.is_attached() {
            return self.connect(out);
        }
        match self.reader.round(out) {
            Ok(round) if round.over => {
                self.reader.finish(out);
                if round.cut_short { Step::Gone } else { Step::Over }
            }
            Ok(round) if round.packets > 0 => Step::Read(Duration::ZERO),
            Ok(_) => {
                let period = Duration::from_micros(u64::from(self.reader.session().live_timer_us));
                Step::Read((period / 2).clamp(ASK_LEAST, ASK_MOST))
            }
            Err(error) => self.failed(error, out),
        }
    }

    /// Gives out what is here, and lets go of the connection.
    pub fn finish(&mut self, out: &mut impl FnMut(&View<'_>)) {
        self.reader.finish(out);
    }

    fn connect(&mut self, out: &mut impl FnMut(&View<'_>)) -> Step {
        let attached =
            Connection::open(&self.target.address).and_then(|connection| self.reader.attach(connection));
        match attached {
            Ok(()) => {
                (self.wait, self.attached) = (WAIT_FIRST, true);
                Step::Read(Duration::ZERO)
            }
            Err(error) => self.failed(error, out),
        }
    }

    fn failed(&mut self, error: LiveError, out: &mut impl FnMut(&View<'_>)) -> Step {
        self.reader.detach();
        match error {
            // A session that was there and is there no more was destroyed.
            LiveError::NoSession { .. } if self.attached => {
                self.reader.finish(out);
                Step::Gone
            }
            LiveError::Version(..) | LiveError::Ctf2(_) => Step::Refused(error),
            // A relay still holds the reader that it lost for a moment; one that makes no sense may be starting.
            LiveError::Away { .. }
            | LiveError::NoSession { .. }
            | LiveError::Refused { .. }
            | LiveError::Protocol(_) => {
                // What is here waits for the others' next connection no longer than for their next word.
                self.reader.give(out);
                let wait = self.wait;
                self.wait = (self.wait * 2).min(WAIT_MOST);
                Step::Away(error, wait)
            }
        }
    }
}
