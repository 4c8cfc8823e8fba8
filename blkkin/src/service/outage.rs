//! An outage of a peer: since when and why, for `/health`.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant, SystemTime};

use super::format_utc;

/// An outage that is not over.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    since: SystemTime,
    started: Instant,
    /// The latest reason.
    pub(crate) reason: String,
}

impl Outage {
    /// Starts an outage now.
    pub(crate) fn new(reason: String) -> Outage {
        Outage { since: SystemTime::now(), started: Instant::now(), reason }
    }

    /// Returns how long the outage has lasted.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Display for Outage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "since {} ({} s): {}", format_utc(self.since), self.elapsed().as_secs(), self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_start_duration_and_reason() {
        let mut outage = Outage::new("a".to_owned());
        outage.started -= Duration::from_secs(90);
        outage.reason = "b".to_owned();
        let text = outage.to_string();
        assert!(text.starts_with("since 20") && text.ends_with("Z (90 s): b"), "{text}");
        assert!(outage.elapsed() >= Duration::from_secs(90));
    }
}
