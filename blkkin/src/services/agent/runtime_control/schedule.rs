//! Lasting settings, and settings that end at some time.
//!
//! *In*: changes, and the time. *Out*: the settings of now. *Invariant*: a change with a time ends after it, and the
//! lasting settings apply again.
//!
//! A later change with a time is added to it, and has its own time for both. A change without a time is made to the
//! lasting settings too.

use std::time::{Duration, Instant};

use crate::ctl::protocol::{Change, RecordingSettings};

/// Settings, and those that end at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) lasting: RecordingSettings,
    pub(super) timed: Option<(RecordingSettings, Instant)>,
}

impl Schedule {
    pub(super) fn now(&self) -> &RecordingSettings {
        self.timed.as_ref().map_or(&self.lasting, |(settings, _)| settings)
    }

    /// Returns the schedule with a change.
    pub(super) fn with(&self, change: &Change, now: Instant) -> Schedule {
        let end = change.for_ms.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
        let (lasting, timed) = match end {
            Some(end) => (self.lasting.clone(), Some((self.now().with(change), end))),
            None => {
                let timed = self.timed.as_ref().map(|(settings, end)| (settings.with(change), *end));
                (self.lasting.with(change), timed)
            }
        };
        let timed = timed.filter(|(settings, _)| *settings != lasting);
        Schedule { lasting, timed }
    }

    /// Returns the time until the change ends that is for a time.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.timed.as_ref().map(|(_, end)| end.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(sample: &str) -> RecordingSettings {
        RecordingSettings { recording: true, sample: sample.into(), keep: Vec::new(), budget: None }
    }

    fn change(sample: &str, for_ms: Option<u64>) -> Change {
        Change { sample: Some(sample.into()), for_ms, ..Change::default() }
    }

    #[test]
    fn a_change_with_a_time_ends_and_one_without_stays() {
        let now = Instant::now();
        let first = Schedule { lasting: settings("1/8"), timed: None };
        let timed = first.with(&change("1/1", Some(1000)), now);
        assert_eq!((timed.now().sample.as_str(), timed.lasting.sample.as_str()), ("1/1", "1/8"));
        assert_eq!(timed.left(now), Some(Duration::from_secs(1)));
        assert_eq!(timed.left(now + Duration::from_secs(2)), Some(Duration::ZERO));
        // A second one with a time changes what is there now, and returns to what was there at first.
        let off = Change { recording: Some(false), for_ms: Some(5000), ..Change::default() };
        let second = timed.with(&off, now);
        assert_eq!((second.now().sample.as_str(), second.now().recording), ("1/1", false));
        assert_eq!(
            (second.lasting.clone(), second.left(now)),
            (settings("1/8"), Some(Duration::from_secs(5)))
        );
        // One without a time stays, and ends no other: it is still off for 5 s, and on with 1/2 from then on.
        let lasting = second.with(&change("1/2", None), now);
        assert_eq!((lasting.now().sample.as_str(), lasting.now().recording), ("1/2", false));
        assert_eq!(
            (lasting.lasting.clone(), lasting.left(now)),
            (settings("1/2"), Some(Duration::from_secs(5)))
        );
        // Nothing is left to end.
        let on = Change { recording: Some(true), ..Change::default() };
        assert_eq!(lasting.with(&on, now), Schedule { lasting: settings("1/2"), timed: None });
    }
}
