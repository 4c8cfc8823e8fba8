//! Selection of traces in Zipkin, and the URLs of its pages.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::servers::Zipkin;

/// Maximum number of traces in a query: as many as SQLite makes here.
const TRACES_MAX: u32 = 10_000;
/// Time range of the dependency page, before and after now.
const AROUND: Duration = Duration::from_secs(3600);

/// Returns the trace id of an SQLite write that wrote data and waited for a commit: the one with
/// the most spans up to `spans_max`, and of these the fastest.
pub(crate) fn find_durable_write(zipkin: &Zipkin, spans_max: usize) -> Result<String> {
    let traces = zipkin.traces("sqlite3", "fdatasync", TRACES_MAX)?;
    let fit = traces.iter().filter(|trace| trace.len() <= spans_max && is_durable_write(trace));
    let most = fit.max_by_key(|trace| (trace.len(), Reverse(longest(trace))));
    let most = most.context("no fdatasync of SQLite wrote data and waited for a commit")?;
    Ok(most[0]["traceId"].as_str().unwrap_or_default().to_owned())
}

/// Returns the trace id of a write-back of a file with data of at least two processes.
pub(crate) fn find_written_by_two(zipkin: &Zipkin) -> Result<String> {
    let traces = zipkin.traces("write-back", "write%20back%20file", TRACES_MAX)?;
    let by_two =
        |span: &Value| span["tags"]["blkkin.writer.programs"].as_str().is_some_and(|all| all.contains(", "));
    let mut spans = traces.iter().flatten().filter(|span| by_two(span));
    let span = spans.next().context("no bio carried data of two processes")?;
    Ok(span["traceId"].as_str().unwrap_or_default().to_owned())
}

/// Checks that the file system wrote data, and that there is one journal commit.
fn is_durable_write(trace: &[Value]) -> bool {
    let of = |name: &'static str| trace.iter().filter(move |span| service(span) == name);
    let data = |file_system: &Value| {
        let mut below = trace.iter().filter(|span| span["parentId"] == file_system["id"]);
        below.any(|span| span["name"] == "bio write")
    };
    of("jbd2").count() == 1 && of("ext4").any(data)
}

fn longest(trace: &[Value]) -> Option<u64> {
    trace.iter().filter_map(|span| span["duration"].as_u64()).max()
}

fn service(span: &Value) -> &str {
    span["localEndpoint"]["serviceName"].as_str().unwrap_or_default()
}

/// Returns the URL of a trace.
pub(crate) fn trace_page(zipkin: &Zipkin, trace: &str) -> String {
    format!("{}/zipkin/traces/{trace}", zipkin.url())
}

/// Returns the URL of the dependency graph.
pub(crate) fn dependency_page(zipkin: &Zipkin) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let [start, end] = [now.saturating_sub(AROUND), now + AROUND].map(|time| time.as_millis());
    format!("{}/zipkin/dependency?startTime={start}&endTime={end}", zipkin.url())
}
