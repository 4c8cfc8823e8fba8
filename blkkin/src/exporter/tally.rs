//! What became of what was received for one destination.

use std::collections::BTreeMap;
use std::time::SystemTime;

use blkkin_bus::kafka::{DEAD, TRACES};
use blkkin_zipkin_export::{Answer, Attempt};

use super::durations::Durations;

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Spans in requests, each as often as it was sent.
    pub(super) sent: u64,
    /// Of these those that had been in a request before.
    pub(super) repeated: u64,
    /// Of all requests.
    pub(super) bytes: u64,
    /// Requests by what they came to.
    answers: BTreeMap<Answer, u64>,
    /// Spans that the destination acknowledged.
    pub(super) delivered: u64,
    /// When it did so last.
    pub(super) acknowledged_at: Option<SystemTime>,
    /// What was received together, until all of it had a verdict.
    pub(super) deliveries: Durations,
    /// Spans that it refused.
    pub(super) rejected: u64,
    /// Of these those that are in `blkkin.dead`.
    pub(super) refused: u64,
    /// Spans that it acknowledged and did not take, without saying which.
    pub(super) not_taken: u64,
    /// Pieces of traces that were given out to us.
    pub(super) pieces: u64,
    /// Pieces that never came, by their numbers.
    pub(super) missing: u64,
    /// Records that had been given out already.
    pub(super) again: u64,
    /// Records that could not be read: they are in `blkkin.dead`.
    pub(super) unreadable: u64,
    /// Spans in hand at the end that nobody acknowledged; the next exporter has them again.
    pub(super) in_hand: u64,
    /// Records that wait for the next exporter; none where the cluster did not say.
    pub(super) left: Option<u64>,
    /// The last commit was not acknowledged: the next exporter sends again what this one sent last.
    pub(super) uncommitted: bool,
    /// Another exporter came under this one's name, so this one has ended: else they would take it from each other for ever.
    pub(super) fenced: bool,
}

impl Tally {
    /// A request was sent.
    pub(super) fn attempted(&mut self, attempt: Attempt) {
        let Attempt { spans, bytes, again, answer } = attempt;
        self.sent += spans as u64;
        self.repeated += if again { spans as u64 } else { 0 };
        self.bytes += bytes as u64;
        *self.answers.entry(answer).or_default() += 1;
    }

    /// Requests that came to this.
    pub(super) fn answered(&self, answer: Answer) -> u64 {
        self.answers.get(&answer).copied().unwrap_or(0)
    }

    /// For a person.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let left = match self.left {
            Some(records) => format!("{records} records left in {TRACES}"),
            None => format!("what is left in {TRACES} the cluster does not say"),
        };
        let mut lines = vec![format!("{} spans delivered to {name}; {left}", self.delivered)];
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                lines.push(format!("{name}: {count} {what}"));
            }
        };
        say(self.in_hand, "spans in hand were not acknowledged: the next exporter sends them");
        say(self.refused, &format!("spans were refused: they are in {DEAD}"));
        say(self.not_taken, "spans were acknowledged and not taken, it is not said which");
        say(self.unreadable, &format!("records could not be read: they are in {DEAD}"));
        say(self.missing, "pieces of traces never came: they were lost before the topic, or in it");
        say(self.again, "records had been delivered already, and were left out");
        if self.uncommitted {
            lines.push(format!("{name}: the last commit was not acknowledged: some spans are sent again"));
        }
        if self.fenced {
            lines.push(format!(
                "{name}: ended, as another exporter has come under the same name; give each its own --instance"
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_there_is_is_said() {
        let quiet = Tally { delivered: 7, left: Some(0), ..Tally::default() };
        assert_eq!(quiet.lines("x"), ["7 spans delivered to x; 0 records left in blkkin.traces"]);
        let troubled = Tally { refused: 1, missing: 2, uncommitted: true, left: None, ..quiet };
        let lines = troubled.lines("x").join("\n");
        for words in ["does not say", "1 spans were refused", "2 pieces", "not acknowledged"] {
            assert!(lines.contains(words), "{lines}");
        }
    }
}
