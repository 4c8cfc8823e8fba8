//! Text encoding of metrics: OpenMetrics 1.0
//! (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>), or
//! Prometheus' older text format 0.0.4. In the latter a counter's family has the name of its
//! samples, and there are no exemplars.
//!
//! *In*: metric families, collected at each scrape. *Out*: text. *Invariant*: the samples of a
//! family are contiguous, its name appears once, and its source bounds the number of series.
//!
//! *Rejected*: the crate prometheus-client. It keeps its own counters, and metrics from a custom
//! collector have no exemplars.

use std::fmt::Write;
use std::time::Duration;

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Durations by bucket.
    Histogram,
}

/// Label names and values of a series.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// A metric family.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricFamily {
    /// The name, without the prefix `blkkin_` and a counter's suffix `_total`.
    pub(crate) name: &'static str,
    /// The help text.
    pub(crate) help: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) samples: Vec<(Labels, Sample)>,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sample {
    /// A single number.
    Number(f64),
    /// A histogram of durations in seconds.
    Histogram(Histogram),
}

/// A histogram's buckets and sum.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// The sum, in seconds.
    pub(crate) sum: f64,
    /// The buckets in order: upper bound in seconds (the last is infinite), count, and an exemplar.
    pub(crate) buckets: Vec<(f64, u64, Option<Exemplar>)>,
}

/// An exemplar: the trace of one observation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) trace: String,
    pub(crate) seconds: f64,
}

impl MetricFamily {
    /// Creates a family of one series without labels.
    pub(crate) fn single(
        kind: MetricKind,
        name: &'static str,
        help: &'static str,
        value: f64,
    ) -> MetricFamily {
        MetricFamily { name, help, kind, samples: vec![(Labels::new(), Sample::Number(value))] }
    }

    /// Creates a counter family with one series per value of a label.
    pub(crate) fn by_label(
        label: &'static str,
        name: &'static str,
        help: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> MetricFamily {
        let sample =
            |(value, number): (&str, u64)| (vec![(label, value.to_owned())], Sample::Number(number as f64));
        MetricFamily {
            name,
            help,
            kind: MetricKind::Counter,
            samples: values.into_iter().map(sample).collect(),
        }
    }
}

/// The metrics and health of a service.
pub(crate) trait ServiceStatus: Send + Sync + 'static {
    /// Collects the current metrics.
    fn metric_families(&self) -> Vec<MetricFamily>;
    /// Returns why the service is unhealthy, if it is.
    fn unhealthy_reason(&self) -> Option<String>;
    /// Returns notes on health, such as unreachable peers and since when. A restart would not
    /// help.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Requests a dump of the flight recorder.
    fn request_dump(&self) -> DumpAnswer {
        DumpAnswer::NoRecorder
    }
}

/// Answer to a request for a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DumpAnswer {
    /// The service has no flight recorder.
    NoRecorder,
    /// The dump begins. The text describes it.
    Started(String),
    /// Another dump began a moment ago; the next one may begin after this time.
    TooSoon(Duration),
}

/// The text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Plain,
}

/// Renders all families.
pub(crate) fn render(families: &[MetricFamily], exposition: Exposition) -> String {
    let mut text = String::new();
    let open = exposition == Exposition::OpenMetrics;
    for family in families {
        let MetricFamily { name, help, kind, samples } = family;
        let (kind, end) = match kind {
            MetricKind::Counter => ("counter", "_total"),
            MetricKind::Gauge => ("gauge", ""),
            MetricKind::Histogram => ("histogram", ""),
        };
        let named = if open { "" } else { end };
        let _ = writeln!(text, "# TYPE blkkin_{name}{named} {kind}\n# HELP blkkin_{name}{named} {help}");
        for (labels, sample) in samples {
            match sample {
                Sample::Number(value) => line(&mut text, name, end, labels, None, *value),
                Sample::Histogram(times) => histogram(&mut text, name, labels, times, exposition),
            }
        }
    }
    if open {
        text.push_str("# EOF\n");
    }
    text
}

fn histogram(text: &mut String, name: &str, labels: &Labels, times: &Histogram, exposition: Exposition) {
    let mut count = 0;
    for (end, within, exemplar) in &times.buckets {
        count += within;
        line(text, name, "_bucket", labels, Some(*end), count as f64);
        if let (Some(Exemplar { trace, seconds }), Exposition::OpenMetrics) = (exemplar, exposition) {
            // Append to the line just written.
            text.pop();
            let _ = writeln!(text, " # {{trace_id=\"{trace}\"}} {}", canonical(*seconds));
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
        label("le", &canonical(le));
    }
    if before == ',' {
        text.push('}');
    }
    // Writing to a string does not fail.
    let _ = writeln!(text, " {}", canonical(value));
}

/// Formats a number canonically for OpenMetrics, so that a bucket's bound is the same text
/// everywhere. An exponent has a sign and two digits.
fn canonical(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_openmetrics_and_the_older_format() {
        let exemplar = Exemplar { trace: "ab".to_owned(), seconds: 2e-5 };
        let buckets = vec![(1e-5, 0, None), (2.5e-5, 2, Some(exemplar)), (f64::INFINITY, 1, None)];
        let times = Sample::Histogram(Histogram { sum: 4.5, buckets });
        let families = [
            MetricFamily::by_label(
                "kind",
                "records_dropped",
                "Records that were dropped",
                [("call", 3), ("bio", 0)],
            ),
            MetricFamily::single(MetricKind::Gauge, "queue_events", "Events that wait", 7.0),
            MetricFamily {
                name: "layer_seconds",
                help: "How long",
                kind: MetricKind::Histogram,
                samples: vec![(vec![("device", "a\"b\\".to_owned())], times)],
            },
        ];
        let expected = "\
# TYPE blkkin_records_dropped counter
# HELP blkkin_records_dropped Records that were dropped
blkkin_records_dropped_total{kind=\"call\"} 3.0
blkkin_records_dropped_total{kind=\"bio\"} 0.0
# TYPE blkkin_queue_events gauge
# HELP blkkin_queue_events Events that wait
blkkin_queue_events 7.0
# TYPE blkkin_layer_seconds histogram
# HELP blkkin_layer_seconds How long
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"1e-05\"} 0.0
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"2.5e-05\"} 2.0 # {trace_id=\"ab\"} 2e-05
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"+Inf\"} 3.0
blkkin_layer_seconds_sum{device=\"a\\\"b\\\\\"} 4.5
blkkin_layer_seconds_count{device=\"a\\\"b\\\\\"} 3.0
# EOF
";
        assert_eq!(render(&families, Exposition::OpenMetrics), expected);
        let plain = expected.replace("# EOF\n", "").replace(" # {trace_id=\"ab\"} 2e-05", "");
        let plain = plain.replace("E blkkin_records_dropped ", "E blkkin_records_dropped_total ");
        let plain = plain.replace("P blkkin_records_dropped ", "P blkkin_records_dropped_total ");
        assert_eq!(render(&families, Exposition::Plain), plain);
    }

    /// The expected texts follow Go's strconv.FormatFloat(x, 'g', -1, 64), with `.0` added to an
    /// integer.
    #[test]
    fn formats_numbers_canonically() {
        let numbers = [1e-5, 0.00025, 0.0, 10.0, 1e16, 2.5e-10, f64::INFINITY];
        let written = ["1e-05", "0.00025", "0.0", "10.0", "1e+16", "2.5e-10", "+Inf"];
        assert_eq!(numbers.map(canonical), written);
    }
}
