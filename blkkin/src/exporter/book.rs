//! What there is to know of one destination at any moment, shared by the thread that works for it and who asks.
//!
//! *In*: what the worker counts, each attempt, and who is away. *Out*: the same under one lock, so that what is asked for is of
//! one moment. *Invariant*: nothing is counted a second time for it: what is said at the end is the same [`Tally`].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blkkin_bus::kafka::DEAD;

use super::tally::Tally;
use crate::service::{LagGauge, Pulse, Trouble};

/// Of one destination.
#[derive(Debug)]
pub(super) struct Book {
    /// The destination, as people know it.
    pub(super) name: String,
    /// A beat for each round, and for each attempt.
    pub(super) pulse: Pulse,
    /// How far its group's member here is behind.
    pub(super) lag: LagGauge,
    tally: Mutex<Tally>,
    troubles: Mutex<[Option<Trouble>; 2]>,
}

/// Who may be away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The destination.
    Destination,
    /// The topic of what it refuses.
    Letters,
}

/// What an outage that was told of is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outage {
    /// It is new.
    Begins,
    /// It is over, after so long.
    Ends(Duration),
    /// It goes on, or there is none.
    Known,
}

impl Book {
    /// Of a destination of that name.
    pub(super) fn new(name: String) -> Book {
        let (pulse, lag, tally, troubles) = Default::default();
        Book { name, pulse, lag, tally, troubles }
    }

    /// To count in, or to read.
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody is away for this reason, or is there.
    pub(super) fn outage(&self, who: Who, why: Option<String>) -> Outage {
        let trouble = &mut self.troubles()[who as usize];
        match (why, &mut *trouble) {
            (Some(why), Some(known)) => {
                known.why = why;
                Outage::Known
            }
            (Some(why), none) => {
                *none = Some(Trouble::new(why));
                Outage::Begins
            }
            (None, _) => trouble.take().map_or(Outage::Known, |known| Outage::Ends(known.lasts())),
        }
    }

    /// Whether the destination is there, as far as it is known.
    pub(super) fn is_up(&self) -> bool {
        self.troubles()[Who::Destination as usize].is_none()
    }

    /// Who is away, and since when.
    pub(super) fn remarks(&self) -> Vec<String> {
        let name = [self.name.clone(), format!("{DEAD}, for what {} refuses,", self.name)];
        let said = |(name, trouble): (String, &Option<Trouble>)| {
            trouble.as_ref().map(|trouble| format!("{name} is away {trouble}"))
        };
        name.into_iter().zip(self.troubles().iter()).filter_map(said).collect()
    }

    fn troubles(&self) -> MutexGuard<'_, [Option<Trouble>; 2]> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_begins_once_and_ends_once() {
        let book = Book::new("zipkin=x".to_owned());
        let away = |why: &str| book.outage(Who::Destination, Some(why.to_owned()));
        assert_eq!(book.outage(Who::Destination, None), Outage::Known);
        assert_eq!((away("a"), away("b")), (Outage::Begins, Outage::Known));
        assert!(!book.is_up());
        let remarks = book.remarks();
        assert!(remarks.len() == 1 && remarks[0].starts_with("zipkin=x is away since 20"), "{remarks:?}");
        assert!(remarks[0].ends_with("s): b"), "{remarks:?}");
        assert!(matches!(book.outage(Who::Destination, None), Outage::Ends(_)));
        assert!(book.is_up() && book.remarks().is_empty());
        assert_eq!(book.outage(Who::Letters, Some("c".to_owned())), Outage::Begins);
        assert!(book.is_up() && book.remarks()[0].starts_with("blkkin.dead, for what zipkin=x refuses,"));
    }
}
