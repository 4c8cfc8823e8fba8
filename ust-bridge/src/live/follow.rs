//! Follows a session over connections: a relay that went away is looked for again, and reading goes on where it stopped.
//!
//! What was read is known by stream and by the end of its last packet, so nothing is read twice. Between attempts it waits
//! 50 ms, then twice as long each time, up to 2 s.

use std::time::Duration;

use super::connection::{Connection, LiveError};
use super::reader::{Counts, Memory, Reader, Settings, Trouble};
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

/// A session, and the connection to its relay, if there is one.
pub struct Follower {
    target: Target,
    reader: Option<Reader>,
    memory: Memory,
    wait: Duration,
    attached: bool,
}

impl Follower {
    /// Connects at the first step.
    pub fn new(target: Target) -> Self {
        Self { target, reader: None, memory: Memory::default(), wait: WAIT_FIRST, attached: false }
    }

    /// What was read so far.
    pub fn counts(&self) -> Counts {
        self.reader.as_ref().map_or(self.memory.counts, Reader::counts)
    }

    /// The reader, while there is a connection.
    pub fn reader(&self) -> Option<&Reader> {
        self.reader.as_ref()
    }

    /// What is wrong with parts of the session, since the last time it was asked for.
    pub fn troubles(&mut self) -> Vec<Trouble> {
        match &mut self.reader {
            Some(reader) => reader.troubles().collect(),
            None => self.memory.troubles().collect(),
        }
    }

    /// All events before are given out; none while there is no stream, or no connection.
    pub fn known_until(&mut self) -> Option<i64> {
        self.reader.as_mut().and_then(Reader::known_until)
    }

    /// What was found to be lost since the last event that was given out.
    pub fn take_gap(&mut self) -> Option<Gap> {
        self.reader.as_mut().and_then(Reader::take_gap)
    }

    /// Connects if need be, makes one round, and says how long to wait until the next.
    pub fn step(&mut self, out: &mut impl FnMut(&View<'_>)) -> Step {
        let Some(reader) = self.reader.as_mut() else { return self.connect() };
        let failed = match reader.round(out) {
            Ok(round) if round.over => {
                self.disconnect(out);
                return Step::Over;
            }
            Ok(round) if round.packets > 0 => return Step::Read(Duration::ZERO),
            Ok(_) => {
                let period = Duration::from_micros(u64::from(reader.session().live_timer_us));
                return Step::Read((period / 2).clamp(ASK_LEAST, ASK_MOST));
            }
            Err(error) => error,
        };
        self.disconnect(out);
        self.failed(failed)
    }

    /// Gives out what is here, and lets go of the connection.
    pub fn disconnect(&mut self, out: &mut impl FnMut(&View<'_>)) {
        if let Some(reader) = self.reader.take() {
            self.memory = reader.leave(out);
        }
    }

    fn connect(&mut self) -> Step {
        let connection = match Connection::open(&self.target.address) {
            Ok(connection) => connection,
            Err(error) => return self.failed(error),
        };
        // Only the first time is it a matter of choice; later, what came meanwhile is wanted.
        let from_begin = self.target.settings.from_begin || self.attached;
        let settings = Settings { from_begin, ..self.target.settings };
        match Reader::attach(connection, &self.target.session, settings, Here::read(), &mut self.memory) {
            Ok(reader) => {
                self.reader = Some(reader);
                (self.wait, self.attached) = (WAIT_FIRST, true);
                Step::Read(Duration::ZERO)
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&mut self, error: LiveError) -> Step {
        if self.attached && matches!(error, LiveError::NoSession { .. }) {
            return Step::Gone;
        }
        match error {
            LiveError::Version(..) | LiveError::Ctf2(_) => Step::Refused(error),
            // A relay still holds the reader that it lost for a moment; one that makes no sense may be starting.
            LiveError::Away { .. }
            | LiveError::NoSession { .. }
            | LiveError::Refused { .. }
            | LiveError::Protocol(_) => {
                let wait = self.wait;
                self.wait = (self.wait * 2).min(WAIT_MOST);
                Step::Away(error, wait)
            }
        }
    }
}
