//! Consumer group lag, queried every few seconds in its own thread. A query may take as long as the
//! cluster takes, so neither the work nor a scrape waits for it.
//!
//! *In*: the progress of each member. *Out*: the last known lag, unless it is stale: an unknown lag
//! is not shown as a number.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Lag, LagReader, Progress, Settings};

use super::{MetricFamily, MetricKind, Sample};
use crate::error::cannot_spawn;
use crate::error::{CliError, Status};

/// Query interval, no shorter than a usual scrape interval.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Age at which a result is stale.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// The lag of one consumer group's member.
#[derive(Clone, Debug, Default)]
pub(crate) struct LagGauge {
    /// The progress of the local member.
    pub(crate) progress: Progress,
    latest: Arc<Mutex<Option<(Instant, Lag)>>>,
}

impl LagGauge {
    /// Returns the last result; `None` if it is stale.
    fn latest(&self) -> Option<Lag> {
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.filter(|(at, _)| at.elapsed() < STALE_AFTER).map(|(_, lag)| lag)
    }

    fn refresh(&self, ends: &LagReader, topic: &str) {
        if let Ok(lag) = ends.lag(topic, &self.progress) {
            *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), lag));
        }
    }

    /// Starts to query the lag of each gauge's topic, until the process exits.
    pub(crate) fn watch(settings: &Settings, all: Vec<(&'static str, LagGauge)>) -> Result<(), CliError> {
        let ends = LagReader::new(settings).map_err(|error| CliError {
            status: Status::Failed,
            ..CliError::usage(error.what, error.why, error.remedy)
        })?;
        let watch = move || {
            loop {
                all.iter().for_each(|(topic, gauge)| gauge.refresh(&ends, topic));
                std::thread::sleep(REFRESH_INTERVAL);
            }
        };
        let failed = |error| cannot_spawn("cannot query the consumer lag", &error);
        Builder::new().name("lag".into()).spawn(watch).map(drop).map_err(failed)
    }

    /// Returns both metric families, with one series per value of `label`.
    pub(crate) fn metric_families<'a>(
        label: &'static str,
        [lag, partitions]: [&'static str; 2],
        groups: impl IntoIterator<Item = (&'a str, &'a LagGauge)>,
    ) -> [MetricFamily; 2] {
        let family = |name, help| MetricFamily { name, help, kind: MetricKind::Gauge, samples: Vec::new() };
        let mut families = [
            family(lag, "Records of this member's partitions that are not processed"),
            family(partitions, "Partitions assigned to this member"),
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
    fn unknown_lag_is_not_shown() {
        let (known, unknown) = (LagGauge::default(), LagGauge::default());
        *known.latest.lock().unwrap() = Some((Instant::now(), Lag { records: 7, partitions: 2 }));
        let groups = [("one", &known), ("two", &unknown)];
        let [lag, partitions] = LagGauge::metric_families("stage", ["lag", "parts"], groups);
        let sample = |number| vec![(vec![("stage", "one".to_owned())], Sample::Number(number))];
        assert_eq!((lag.samples, partitions.samples), (sample(7.0), sample(2.0)));
    }
}
