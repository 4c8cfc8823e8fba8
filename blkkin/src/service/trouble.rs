//! Who is away, or what hinders: since when and why, for a person who asks for health.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant, SystemTime};

use super::utc;

/// It goes on.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    since: SystemTime,
    begun: Instant,
    /// As it was met last.
    pub(crate) why: String,
}

impl Trouble {
    /// It begins now.
    pub(crate) fn new(why: String) -> Trouble {
        Trouble { since: SystemTime::now(), begun: Instant::now(), why }
    }

    /// So long.
    pub(crate) fn lasts(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Display for Trouble {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "since {} ({} s): {}", utc(self.since), self.lasts().as_secs(), self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_since_when_and_why() {
        let mut trouble = Trouble::new("a".to_owned());
        trouble.begun -= Duration::from_secs(90);
        trouble.why = "b".to_owned();
        let said = trouble.to_string();
        assert!(said.starts_with("since 20") && said.ends_with("Z (90 s): b"), "{said}");
        assert!(trouble.lasts() >= Duration::from_secs(90));
    }
}
