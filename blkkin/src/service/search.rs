//! The search for a cluster that need not be there yet.
//!
//! ```text
//! thread "look": attempt, every 2 s ── each hindrance once ──► inbox ──► a person, the manager, /health
//!                       └── found ─────────────────────────► inbox
//! ```
//!
//! *In*: an attempt that finds what a service needs, or says what hinders it. *Out*: remarks, and [`Happening::Found`] once.
//! *Invariant*: a hindrance is said once, however often it is met; whoever waits hears a signal at once, as the attempts (which
//! may take 20 s each) are another thread's.
//!
//! A service that can work meanwhile (an agent) goes on and is told. One that cannot waits ([`Search::found`]): it is not ready
//! for its manager until it works, and it is alive while attempts are made.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::KafkaError;
use blkkin_tracer::StopSignal;

use super::{Manager, Pulse, Trouble};
use crate::failure::Failure;
use crate::output::say;
use crate::session::{Happening, Inbox, no_thread};

/// Between two attempts; the manager hears of the waiting as often.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Words that are remembered as said. There are a handful, but what a cluster answers is not ours.
const SAID_MAX: usize = 64;

/// Under way, or done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    hindrance: Arc<Mutex<Option<Trouble>>>,
    pulse: Pulse,
}

impl Search {
    /// Begins, in a thread that nobody waits for: it ends with the process. `found` is what is said when it took more than one
    /// attempt: "the cluster answers".
    pub(crate) fn begin(
        found: &'static str,
        inbox: &Inbox,
        stop: &StopSignal,
        mut attempt: impl FnMut() -> Result<(), KafkaError> + Send + 'static,
    ) -> Result<Search, Failure> {
        let search = Search::default();
        let (looking, inbox, stop) = (search.clone(), inbox.sender(), stop.clone());
        let look = move || {
            // Nobody listens any more at the end.
            let tell = |happening| drop(inbox.send(happening));
            let stopped = || stop.wait(LOOK_EVERY);
            if looking.look(found, &mut attempt, stopped, |remark| tell(Happening::Waiting(remark))) {
                tell(Happening::Found);
            }
        };
        let failed = |error| no_thread("cannot look for the cluster", &error);
        Builder::new().name("look".into()).spawn(look).map_err(failed)?;
        Ok(search)
    }

    /// Whether it was found, and the end did not come first.
    fn look(
        &self,
        found: &str,
        attempt: &mut impl FnMut() -> Result<(), KafkaError>,
        mut stopped: impl FnMut() -> bool,
        tell: impl Fn(String),
    ) -> bool {
        let (mut said, begun) = (BTreeSet::new(), Instant::now());
        loop {
            self.pulse.beat();
            let Err(error) = attempt() else { break };
            self.hindered(&error);
            if said.len() < SAID_MAX && said.insert(error.to_string()) {
                tell(format!("{error}; try: {}; going on until it can be used", error.remedy));
            }
            if stopped() {
                return false;
            }
        }
        *self.hindrance() = None;
        if !said.is_empty() {
            tell(format!("{found} after {} s", begun.elapsed().as_secs()));
        }
        true
    }

    /// Waits until it is found; false where the end was asked for first. `beat` is called meanwhile: who waits is well.
    pub(crate) fn found(&self, inbox: &mut Inbox, manager: &Manager, beat: impl Fn()) -> bool {
        loop {
            match inbox.next(manager.every().unwrap_or(LOOK_EVERY).min(LOOK_EVERY)) {
                Some(Happening::Found) => return true,
                Some(Happening::Signal(arrival)) if !arrival.is_child() => return false,
                Some(Happening::Waiting(remark)) => {
                    say(&remark);
                    manager.status(&remark);
                }
                Some(Happening::Signal(_) | Happening::PipelineEnded) | None => {}
            }
            beat();
            manager.starting(self.pulse.silence());
        }
    }

    /// What hinders it, and since when; none once it is found.
    pub(crate) fn remark(&self) -> Option<String> {
        self.hindrance().as_ref().map(|hindrance| format!("waiting {hindrance}"))
    }

    fn hindered(&self, error: &KafkaError) {
        self.hindrance().get_or_insert_with(|| Trouble::new(String::new())).why = error.to_string();
    }

    fn hindrance(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.hindrance.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn error(what: &str) -> Result<(), KafkaError> {
        Err(KafkaError { what: what.to_owned(), why: "why".to_owned(), remedy: "remedy".to_owned() })
    }

    fn looked(answers: &[Result<(), KafkaError>], stop_after: usize) -> (bool, Vec<String>, Search) {
        let (search, told) = (Search::default(), RefCell::new(Vec::new()));
        let mut answers = answers.iter().cloned();
        let mut rounds = 0;
        let stopped = || {
            rounds += 1;
            rounds == stop_after
        };
        let found = search.look("it is there", &mut || answers.next().unwrap(), stopped, |remark| {
            told.borrow_mut().push(remark);
        });
        (found, told.into_inner(), search)
    }

    #[test]
    fn each_hindrance_is_said_once_also_when_two_take_turns() {
        let answers = ["a", "b", "a", "b", "a"].map(error).into_iter().chain([Ok(())]).collect::<Vec<_>>();
        let (found, told, search) = looked(&answers, usize::MAX);
        assert!(found && told.len() == 3, "{told:?}");
        assert_eq!(told[0], "a: why; try: remedy; going on until it can be used");
        assert!(told[1].starts_with("b: ") && told[2].starts_with("it is there after"), "{told:?}");
        assert_eq!(search.remark(), None);
    }

    #[test]
    fn what_is_there_at_once_is_nothing_to_speak_of() {
        assert_eq!(looked(&[Ok(())], 1).1, [""; 0]);
    }

    #[test]
    fn told_to_end_it_ends_and_what_hindered_it_is_known() {
        let (found, told, search) = looked(&[error("a"), error("b")], 2);
        assert!(!found && told.len() == 2, "{told:?}");
        let remark = search.remark().unwrap();
        assert!(remark.starts_with("waiting since 20") && remark.ends_with("b: why"), "{remark}");
    }
}
