//! Figures as monitoring systems read them: OpenMetrics 1.0 text
//! (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>), or, for who asks for no more than
//! that, Prometheus' older text format 0.0.4: there a counter's family has the name that its samples have, and there are no
//! traces to look at.
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
    /// What else there is to say of how it is: who is away, and since when. To be started again would mend none of it.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// How figures are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Plain,
}

/// The text of all families.
pub(crate) fn text(families: &[Family], exposition: Exposition) -> String {
    let mut text = String::new();
    let open = exposition == Exposition::OpenMetrics;
    for family in families {
        let Family { name, help, kind, samples } = family;
        let (kind, end) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram => ("histogram", ""),
        };
        let named = if open { "" } else { end };
        let _ = writeln!(text, "# TYPE blkkin_{name}{named} {kind}\n# HELP blkkin_{name}{named} {help}");
        for (labels, sample) in samples {
            match sample {
                Sample::Number(value) => line(&mut text, name, end, labels, None, *value),
                Sample::Times(times) => histogram(&mut text, name, labels, times, exposition),
            }
        }
    }
    if open {
        text.push_str("# EOF\n");
    }
    text
}

fn histogram(text: &mut String, name: &str, labels: &Labels, times: &Times, exposition: Exposition) {
    let mut count = 0;
    for (end, within, example) in &times.ranges {
        count += within;
        line(text, name, "_bucket", labels, Some(*end), count as f64);
        if let (Some(Example { trace, seconds }), Exposition::OpenMetrics) = (example, exposition) {
            // In the same line.
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

/// A number in the one way in which OpenMetrics wants it, so that a range's end is the same text wherever it comes from: an
/// exponent has a sign and two digits.
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
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"1e-05\"} 0.0
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"2.5e-05\"} 2.0 # {trace_id=\"ab\"} 2e-05
blkkin_layer_seconds_bucket{device=\"a\\\"b\\\\\",le=\"+Inf\"} 3.0
blkkin_layer_seconds_sum{device=\"a\\\"b\\\\\"} 4.5
blkkin_layer_seconds_count{device=\"a\\\"b\\\\\"} 3.0
# EOF
";
        assert_eq!(text(&families, Exposition::OpenMetrics), expected);
        let plain = expected.replace("# EOF\n", "").replace(" # {trace_id=\"ab\"} 2e-05", "");
        let plain = plain.replace("E blkkin_records_dropped ", "E blkkin_records_dropped_total ");
        let plain = plain.replace("P blkkin_records_dropped ", "P blkkin_records_dropped_total ");
        assert_eq!(text(&families, Exposition::Plain), plain);
    }

    /// As Go's strconv.FormatFloat(x, 'g', -1, 64) has them, with `.0` where that would be an integer.
    #[test]
    fn numbers_are_written_in_one_way() {
        let numbers = [1e-5, 0.00025, 0.0, 10.0, 1e16, 2.5e-10, f64::INFINITY];
        let written = ["1e-05", "0.00025", "0.0", "10.0", "1e+16", "2.5e-10", "+Inf"];
        assert_eq!(numbers.map(canonical), written);
    }
}
