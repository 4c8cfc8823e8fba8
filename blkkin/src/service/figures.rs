//! Figures as monitoring systems read them: OpenMetrics 1.0 text
//! (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>).
//!
//! *In*: families of samples, made at the moment of the question. *Out*: text. *Invariant*: a family stands in one piece, its
//! name is said once, and how many series there are is bounded by who makes them.
//!
//! *Rejected*: the crate prometheus-client. It counts by itself, and what it lets others hand in has no exemplars.

use std::fmt::Write;

/// What a family's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// They only grow.
    Counter,
    /// They go up and down.
    Gauge,
    /// Times by range.
    Histogram,
}

/// Names and values that tell the series of a family apart.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// Numbers of one name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Family {
    /// Without `blkkin_` in front and `_total` behind, which counters get.
    pub(crate) name: &'static str,
    /// What it is.
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    pub(crate) samples: Vec<(Labels, Sample)>,
}

/// What a series has to say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sample {
    /// A number.
    Number(f64),
    /// How many of so many seconds.
    Times(Times),
}

/// A histogram's part of a series.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// All together, in seconds.
    pub(crate) sum: f64,
    /// Of each range, in order: where it ends (the last is endless), how many lie in it, and one of them.
    pub(crate) ranges: Vec<(f64, u64, Option<Example>)>,
}

/// A trace to look at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Example {
    pub(crate) trace: String,
    pub(crate) seconds: f64,
}

impl Family {
    /// One number.
    pub(crate) fn one(kind: Kind, name: &'static str, help: &'static str, value: f64) -> Family {
        Family { name, help, kind, samples: vec![(Labels::new(), Sample::Number(value))] }
    }

    /// A counter for each value of a label.
    pub(crate) fn by(
        label: &'static str,
        name: &'static str,
        help: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Family {
        let sample =
            |(value, number): (&str, u64)| (vec![(label, value.to_owned())], Sample::Number(number as f64));
        Family { name, help, kind: Kind::Counter, samples: values.into_iter().map(sample).collect() }
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
pub(crate) fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        let Family { name, help, kind, samples } = family;
        let (kind, end) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram => ("histogram", ""),
        };
        let _ = writeln!(text, "# TYPE blkkin_{name} {kind}\n# HELP blkkin_{name} {help}");
        for (labels, sample) in samples {
            match sample {
                Sample::Number(value) => line(&mut text, name, end, labels, None, *value),
                Sample::Times(times) => histogram(&mut text, name, labels, times),
            }
        }
    }
    text.push_str("# EOF\n");
    text
}

fn histogram(text: &mut String, name: &str, labels: &Labels, times: &Times) {
    let mut count = 0;
    for (end, within, example) in &times.ranges {
        count += within;
        line(text, name, "_bucket", labels, Some(*end), count as f64);
        if let Some(Example { trace, seconds }) = example {
            // In the same line.
            text.pop();
            let _ = writeln!(text, " # {{trace_id=\"{trace}\"}} {seconds:?}");
        }
    }
    line(text, name, "_sum", labels, None, times.sum);
    line(text, name, "_count", labels, None, count as f64);
}

fn line(text: &mut String, name: &str, end: &str, labels: &Labels, le: Option<f64>, value: f64) {
    let _ = write!(text, "blkkin_{name}{end}");
    let mut before = '{';
    let mut label = |name: &str, value: &str| {
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let _ = write!(text, "{before}{name}=\"{value}\"");
        before = ',';
    };
    labels.iter().for_each(|(name, value)| label(name, value));
    if let Some(le) = le {
        label("le", &if le.is_infinite() { "+Inf".to_owned() } else { format!("{le:?}") });
    }
    if before == ',' {
        text.push('}');
    }
    // Writing to a string does not fail.
    let _ = writeln!(text, " {value:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_open_metrics() {
        let example = Example { trace: "ab".to_owned(), seconds: 2e-5 };
        let ranges = vec![(1e-5, 0, None), (2.5e-5, 2, Some(example)), (f64::INFINITY, 1, None)];
        let times = Sample::Times(Times { sum: 4.5, ranges });
        let families = [
            Family::by("kind", "records_dropped", "Records that had no room", [("call", 3), ("bio", 0)]),
            Family::one(Kind::Gauge, "queue_events", "Events that wait", 7.0),
            Family {
                name: "layer_seconds",
                help: "How long",
                kind: Kind::Histogram,
                samples: vec![(vec![("device", "a\"b\\".to_owned())], times)],
            },
        ];
        let expected = "\
# TYPE blkkin_records_dropped counter
# HELP blkkin_records_dropped Records that had no room
blkkin_records_dropped_total{kind=\"call\"} 3.0
blkkin_records_dropped_total{kind=\"bio\"} 0.0
# TYPE blkkin_queue_events gauge
# HELP blkkin_queue_events Events that wait
blkkin_queue_events 7.0
# TYPE blkkin_layer_seconds histogram
# HELP blkkin_layer_seconds How long
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"1e-5\"} 0.0
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"2.5e-5\"} 2.0 # {trace_id=\"ab\"} 2e-5
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"+Inf\"} 3.0
blkkin_layer_seconds_sum{device=\"a\\\"b\\\\\"} 4.5
blkkin_layer_seconds_count{device=\"a\\\"b\\\\\"} 3.0
# EOF
";
        assert_eq!(text(&families), expected);
    }
}
