//! The end of the exporter: joins the workers and logs a summary of each destination.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

use blkkin_bus::kafka::{DEAD, TRACES};
use tracing::info;

use super::stats::DestinationStats;
use super::status::DestinationStatus;
use crate::error::{Status, panicked};

/// Waits for the workers, logs their summaries, and returns the exit code.
pub(super) fn finish(threads: Vec<(&Arc<DestinationStatus>, JoinHandle<()>)>) -> ExitCode {
    let mut code = Status::Success.code();
    for (status, thread) in threads {
        match thread.join() {
            Ok(()) => {
                let stats = status.stats();
                summary(&stats, &status.name)
                    .iter()
                    .for_each(|line| info!(destination = status.name, "{line}"));
                if stats.fenced {
                    code = Status::Failed.code();
                }
            }
            Err(panic) => code = panicked(&format!("the export to {}", status.name), &*panic).print(),
        }
    }
    code
}

/// Returns the lines of the shutdown summary.
fn summary(stats: &DestinationStats, name: &str) -> Vec<String> {
    let left = match stats.records_left {
        Some(records) => format!("{records} records left in {TRACES}"),
        None => format!("the cluster did not report the records left in {TRACES}"),
    };
    let mut lines = vec![format!("{} spans delivered to {name}; {left}", stats.delivered)];
    let mut add = |count: u64, what: &str| {
        if count > 0 {
            lines.push(format!("{name}: {count} {what}"));
        }
    };
    add(stats.unacknowledged, "spans were not acknowledged: the next exporter sends them");
    add(stats.dead_lettered, &format!("spans were refused: they are in {DEAD}"));
    add(stats.not_taken, "spans were acknowledged and not accepted, without naming them");
    add(stats.unreadable, &format!("records could not be decoded: they are in {DEAD}"));
    add(stats.missing_fragments, "trace fragments are missing: they were lost before the topic, or in it");
    add(stats.duplicate_records, "duplicate records were skipped");
    if stats.uncommitted {
        lines.push(format!("{name}: the last commit was not acknowledged: some spans are sent again"));
    }
    if stats.fenced {
        lines.push(format!(
            "{name}: fenced by another exporter of the same name; give each its own --instance"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_omits_zero_counts() {
        let clean = DestinationStats { delivered: 7, records_left: Some(0), ..DestinationStats::default() };
        assert_eq!(summary(&clean, "x"), ["7 spans delivered to x; 0 records left in blkkin.traces"]);
        let failing = DestinationStats {
            dead_lettered: 1,
            missing_fragments: 2,
            uncommitted: true,
            records_left: None,
            ..clean
        };
        let lines = summary(&failing, "x").join("\n");
        for words in ["did not report", "1 spans were refused", "2 trace fragments", "not acknowledged"] {
            assert!(lines.contains(words), "{lines}");
        }
    }
}
