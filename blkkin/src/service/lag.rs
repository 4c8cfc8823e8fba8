//! How far each group of a service is behind, asked every few seconds in a thread of its own: an answer may take as long as the
//! cluster does, and neither work nor a scrape waits for it.
//!
//! *In*: where each member says it stands. *Out*: the last answer, unless it is old: what is not known is not shown as a number.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Ends, Lag, Progress, Settings};

use super::{Family, Kind, Sample};
use crate::failure::{Failure, Status};
use crate::session::no_thread;

/// Between two questions: as often as a monitoring system looks at the most.
const EVERY: Duration = Duration::from_secs(5);
/// An answer that is older says nothing of now.
const OLD: Duration = Duration::from_secs(60);

/// Of one group.
#[derive(Clone, Debug, Default)]
pub(crate) struct LagGauge {
    /// Where its member here says that it stands.
    pub(crate) progress: Progress,
    latest: Arc<Mutex<Option<(Instant, Lag)>>>,
}

impl LagGauge {
    /// What the cluster said last; none if that is long ago.
    fn latest(&self) -> Option<Lag> {
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.filter(|(at, _)| at.elapsed() < OLD).map(|(_, lag)| lag)
    }

    fn ask(&self, ends: &Ends, topic: &str) {
        if let Ok(lag) = ends.lag(topic, &self.progress) {
            *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), lag));
        }
    }

    /// Asks for all of these from now on, each of its topic, until the process ends.
    pub(crate) fn watch(settings: &Settings, all: Vec<(&'static str, LagGauge)>) -> Result<(), Failure> {
        let ends = Ends::new(settings).map_err(|error| Failure {
            status: Status::Failed,
            ..Failure::usage(error.what, error.why, error.remedy)
        })?;
        let watch = move || {
            loop {
                all.iter().for_each(|(topic, gauge)| gauge.ask(&ends, topic));
                std::thread::sleep(EVERY);
            }
        };
        let failed = |error| no_thread("cannot watch the lag", &error);
        Builder::new().name("lag".into()).spawn(watch).map(drop).map_err(failed)
    }

    /// Both families of it, for groups that `label` tells apart.
    pub(crate) fn families<'a>(
        label: &'static str,
        [lag, partitions]: [&'static str; 2],
        groups: impl IntoIterator<Item = (&'a str, &'a LagGauge)>,
    ) -> [Family; 2] {
        let family = |name, help| Family { name, help, kind: Kind::Gauge, samples: Vec::new() };
        let mut families = [
            family(lag, "Records of this member's partitions that are there and not done"),
            family(partitions, "Partitions that this member has"),
        ];
        for (value, gauge) in groups {
            let Some(Lag { records, partitions }) = gauge.latest() else { continue };
            let numbers = [records as f64, partitions as f64];
            for (family, number) in families.iter_mut().zip(numbers) {
                family.samples.push((vec![(label, value.to_owned())], Sample::Number(number)));
            }
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_shown() {
        let (known, unknown) = (LagGauge::default(), LagGauge::default());
        *known.latest.lock().unwrap() = Some((Instant::now(), Lag { records: 7, partitions: 2 }));
        let groups = [("one", &known), ("two", &unknown)];
        let [lag, partitions] = LagGauge::families("stage", ["lag", "parts"], groups);
        let sample = |number| vec![(vec![("stage", "one".to_owned())], Sample::Number(number))];
        assert_eq!((lag.samples, partitions.samples), (sample(7.0), sample(2.0)));
    }
}
