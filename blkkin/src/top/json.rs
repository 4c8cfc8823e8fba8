//! A sample as one JSON object, for programs: docs/top.md has its members.

use blkkin_tracer::totals::{RequestTotal, longest, quantile};
use chrono::SecondsFormat;
use serde_json::{Value, json};

use super::cgroup_names::CgroupNames;
use super::sample::Sample;

/// Returns the object.
pub(super) fn of(sample: &Sample, names: &mut CgroupNames) -> Value {
    let rows = sample.rows.iter().map(|(key, total)| {
        let mut row = numbers(total);
        row["program"] = json!(key.program);
        row["cgroup"] = json!(names.path(key.cgroup));
        row["disk"] = json!(sample.disk(key));
        row["operation"] = json!(key.operation);
        row
    });
    json!({
        "time": sample.time.to_rfc3339_opts(SecondsFormat::Millis, true),
        "seconds": sample.length.as_secs_f64(),
        "rows": rows.collect::<Vec<_>>(),
        "others": numbers(&sample.others),
        "untracked": sample.untracked,
        "missed": sample.missed,
    })
}

fn numbers(total: &RequestTotal) -> Value {
    let mut numbers = json!({
        "requests": total.requests,
        "bytes": total.bytes,
        "errors": total.errors,
        "queue_ns": total.queue_ns,
        "device_ns": total.device_ns,
    });
    for (name, histogram) in [("queue", &total.queue), ("device", &total.device)] {
        for (suffix, part) in [("p50", 0.5), ("p99", 0.99)] {
            numbers[format!("{name}_{suffix}_ns")] = json!(quantile(histogram, part));
        }
        numbers[format!("{name}_max_ns")] = json!(longest(histogram));
    }
    numbers
}
