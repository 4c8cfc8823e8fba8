//! Figures as monitoring systems read them: OpenMetrics 1.0 text.
//!
//! *In*: families of samples, made at the moment of the question. *Out*: text. *Invariant*: a counter's name has no unit that
//! it does not count in, and labels are of a fixed set: how many series there are does not depend on the load.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// What a family's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// They only grow.
    Counter,
    /// They go up and down.
    Gauge,
}

/// Numbers of one name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Family {
    /// Without `blkkin_` in front and `_total` behind, which counters get.
    pub(crate) name: &'static str,
    /// What it is.
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    pub(crate) samples: Samples,
}

/// How many there are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Samples {
    /// One.
    One(f64),
    /// One for each value of a label.
    By(&'static str, Vec<(&'static str, f64)>),
}

impl Family {
    /// One number.
    pub(crate) fn one(kind: Kind, name: &'static str, help: &'static str, value: f64) -> Family {
        Family { name, help, kind, samples: Samples::One(value) }
    }

    /// A number for each value of a label.
    pub(crate) fn by(
        label: &'static str,
        name: &'static str,
        help: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Family {
        let values = values.into_iter().map(|(value, number)| (value, number as f64)).collect();
        Family { name, help, kind: Kind::Counter, samples: Samples::By(label, values) }
    }
}

/// Who knows how it is.
pub(crate) trait Figures: Send + Sync + 'static {
    /// All families, as of now.
    fn families(&self) -> Vec<Family>;
    /// Why it is not well, if it is not.
    fn ill(&self) -> Option<String>;
}

/// The text of all families.
pub(crate) fn text(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("blkkin");
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in &self.0 {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut described = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            let put = |value: f64, sample: MetricEncoder<'_>| match family.kind {
                Kind::Counter => ConstCounter::new(value).encode(sample),
                Kind::Gauge => ConstGauge::new(value).encode(sample),
            };
            match &family.samples {
                Samples::One(value) => put(*value, described)?,
                Samples::By(label, values) => {
                    for (of, value) in values {
                        put(*value, described.encode_family(&[(*label, *of)])?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_open_metrics() {
        let families = vec![
            Family::by("kind", "records_dropped", "Records that had no room", [("call", 3), ("bio", 0)]),
            Family::one(Kind::Gauge, "queue_events", "Events that wait", 7.0),
        ];
        let expected = "\
# HELP blkkin_records_dropped Records that had no room
# TYPE blkkin_records_dropped counter
blkkin_records_dropped_total{kind=\"call\"} 3.0
blkkin_records_dropped_total{kind=\"bio\"} 0.0
# HELP blkkin_queue_events Events that wait
# TYPE blkkin_queue_events gauge
blkkin_queue_events 7.0
# EOF
";
        assert_eq!(text(families).unwrap(), expected);
    }
}
