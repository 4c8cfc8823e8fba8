//! What became of a start of a tracer that was killed, as the next start has found it.
//!
//! *Invariant*: fired = kept + lost, kind by kind. What nobody can know any more is said to be unknown, and is not 0.

use crate::event::LayerEvent;
use crate::ids::StartEpoch;

/// How many of each kind: a pair is a bio and a request, and names are those of tasks and files. What user space adds by
/// itself (names of devices) is none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// System calls.
    pub calls: u64,
    /// Bios.
    pub bios: u64,
    /// Requests.
    pub requests: u64,
    /// Commits.
    pub commits: u64,
    /// Tasks and files.
    pub names: u64,
}

impl Tally {
    /// In a fixed order.
    pub fn numbers(&self) -> [u64; 5] {
        [self.calls, self.bios, self.requests, self.commits, self.names]
    }

    /// From that order.
    pub fn from_numbers([calls, bios, requests, commits, names]: [u64; 5]) -> Tally {
        Tally { calls, bios, requests, commits, names }
    }

    /// Of these events.
    pub fn of(events: &[LayerEvent]) -> Tally {
        let mut tally = Tally::default();
        for event in events {
            match event {
                LayerEvent::Call(_) => tally.calls += 1,
                LayerEvent::Bio(_) => tally.bios += 1,
                LayerEvent::Request(_) => tally.requests += 1,
                LayerEvent::Pair(_) => {
                    tally.bios += 1;
                    tally.requests += 1;
                }
                LayerEvent::Commit(_) => tally.commits += 1,
                LayerEvent::Task(_) | LayerEvent::File(_) => tally.names += 1,
                // Names of devices and what processes say are read in user space; no program sees nodes meet.
                LayerEvent::Device(_)
                | LayerEvent::Meeting(_)
                | LayerEvent::Operation(_)
                | LayerEvent::Process(_) => {}
            }
        }
        tally
    }

    /// All kinds together.
    pub fn sum(&self) -> u64 {
        self.numbers().iter().sum()
    }

    /// Kind by kind.
    pub fn plus(&self, other: &Tally) -> Tally {
        self.with(other, u64::saturating_add)
    }

    /// Kind by kind, 0 at the least.
    pub fn minus(&self, other: &Tally) -> Tally {
        self.with(other, u64::saturating_sub)
    }

    fn with(&self, other: &Tally, both: fn(u64, u64) -> u64) -> Tally {
        let (own, other) = (self.numbers(), other.numbers());
        Tally::from_numbers(std::array::from_fn(|kind| both(own[kind], other[kind])))
    }
}

/// A start that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed {
    /// Which; none where not even that is known.
    pub epoch: Option<StartEpoch>,
    /// What became of its records; none where that is not known.
    pub remains: Option<Remains>,
}

/// What became of the records of such a start. fired = kept + lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    /// Were due, as the kernel side counted.
    pub fired: Tally,
    /// Had no room in a ring, as the kernel side counted.
    pub dropped: Tally,
    /// Were read from the rings. What is neither dropped nor read was in the rings.
    pub read: Tally,
    /// Are in the topic, or in a spool on their way to it.
    pub kept: Tally,
    /// Of those that are not kept: were sent, and not acknowledged yet. They may be in the topic.
    pub doubtful: Tally,
}

impl Remains {
    /// What is nowhere; of this [`Remains::doubtful`] may be in the topic all the same.
    pub fn lost(&self) -> Tally {
        self.fired.minus(&self.kept)
    }
}
