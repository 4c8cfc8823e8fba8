//! `blkkin agent --totals`: each block request is counted in the kernel, though few operations are recorded.
//!
//! *Input*: direct reads and writes of a loop device, and flushes. *Independent counts*: the kernel's of the device
//! (`/sys/block/*/stat`), and the test's own.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::disk::{Disk, stat_columns};
use crate::support::missed_ends::RUNS_MAX;
use crate::support::service::Service;
use crate::support::tools::is_guest;
use crate::support::{agent_recording, direct, metrics};
use crate::support::{needs, or_skip};

const LIMIT: Duration = Duration::from_secs(60);
const FLUSHES: u64 = 20;

/// Samples of one disk and operation, by the name of the series.
type Row = BTreeMap<String, f64>;

/// Returns the row of an operation, with the number of requests in buckets up to each bound.
fn row(text: &str, disk: &str, operation: &str) -> Row {
    let is_of = |labels: &BTreeMap<String, String>, name: &str, value: &str| {
        labels.get(name).is_some_and(|found| found == value)
    };
    metrics::series(text)
        .into_iter()
        .filter(|(labels, _)| is_of(labels, "disk", disk) && is_of(labels, "operation", operation))
        .map(|(labels, value)| {
            let bound = labels.get("le").map_or(String::new(), |bound| format!(" {bound}"));
            (format!("{}{bound}", labels["__name__"]), value)
        })
        .collect()
}

fn of(row: &Row, name: &str) -> u64 {
    row.get(name).copied().unwrap_or_default() as u64
}

#[test]
fn each_request_is_counted_though_few_are_recorded() {
    check("tp_btf");
}

#[test]
fn each_request_is_counted_by_raw_tracepoints() {
    check("raw_tp");
}

fn check(attach: &str) {
    needs!("losetup");
    // An emulated CPU takes minutes for more.
    let (reads, writes) = if is_guest() { (2_000, 100) } else { (20_000, 500) };
    let disk = or_skip!(Disk::raw(8 << 20));
    let device = direct::open(disk.node());
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording").display().to_string();
    let options = ["--totals", "--attach", attach, "--sample", "1/1024", "--device", disk.name()];
    let args = [&["agent", "--record", &recording, "--metrics", "127.0.0.1:0"], &options[..]].concat();
    let agent = Service::start(folder.path(), "agent", &args);
    agent.wait_for_output("tracing; events go", LIMIT);
    let address = metrics::address(&agent.output()).to_owned();
    let scrape = || {
        let text = metrics::get(&address, "/metrics");
        (text.clone(), ["read", "write", "flush"].map(|operation| row(&text, disk.name(), operation)))
    };
    let mut runs = 0;
    loop {
        runs += 1;
        let (before, (text_before, rows_before)) = (stat_columns(disk.name()), scrape());
        for n in 0..reads {
            direct::read_at(&device, n % 2_048 * 4_096).unwrap();
        }
        for n in 0..writes {
            direct::write_at(&device, n * 4_096).unwrap();
        }
        for _ in 0..FLUSHES {
            device.sync_all().unwrap();
        }
        let (after, (text, rows)) = (stat_columns(disk.name()), scrape());
        let counted: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        let since =
            |operation: usize, name: &str| of(&rows[operation], name) - of(&rows_before[operation], name);
        let requests = [0, 1, 2].map(|operation| since(operation, "blkkin_request_queue_seconds_count"));
        println!("{counted:?} by the kernel, {requests:?} reads, writes and flushes");
        // Completions that the kernel hid from every program, at most a few.
        let (found, expected) = (requests.iter().sum::<u64>(), counted[0] + counted[4]);
        if found < expected && expected - found <= 5 && runs < RUNS_MAX {
            continue;
        }
        // The kernel counts a flush without data as a write.
        assert_eq!((requests[0], requests[1] + requests[2]), (counted[0], counted[4]));
        assert!(requests[0] >= reads && requests[1] >= writes && requests[2] >= FLUSHES, "{requests:?}");
        let bytes = [0, 1].map(|operation| since(operation, "blkkin_request_bytes_total"));
        assert_eq!(bytes, [counted[2] * 512, counted[6] * 512]);
        for row in &rows[..2] {
            let count = of(row, "blkkin_request_device_seconds_count");
            assert_eq!(of(row, "blkkin_request_queue_seconds_count"), count);
            assert_eq!(of(row, "blkkin_request_device_seconds_bucket +Inf"), count);
            assert_eq!(of(row, "blkkin_request_errors_total"), 0);
        }
        // The kernel's time has ms, summed from ns. It begins when the request is allocated, before the first hook, and
        // ends after the last one, behind the programs that record.
        let seconds = |row: &Row| {
            ["queue", "device"]
                .map(|part| row[&format!("blkkin_request_{part}_seconds_sum")])
                .iter()
                .sum::<f64>()
        };
        let own = seconds(&rows[0]) - seconds_or_zero(&rows_before[0], &seconds);
        let kernels = counted[3] as f64 / 1e3;
        println!("{own} s of reads, {kernels} s by the kernel");
        // An emulated CPU that waits for the host's does so around the hooks too: 283 µs a read were seen.
        let least = if is_guest() { kernels / 2.0 } else { kernels - 10e-6 * counted[0] as f64 - 0.002 };
        assert!(own <= kernels + 0.002 && own >= least, "{own} and {kernels}");
        for reason in ["table full", "program skipped"] {
            let series = format!("blkkin_requests_uncounted_total{{reason=\"{reason}\"}}");
            let uncounted = [&text_before, &text].map(|text| metrics::value(text, &series));
            assert_eq!(uncounted[0], uncounted[1], "{reason}");
        }
        if !is_guest() {
            let [found, documented] =
                [metrics::families(&text), metrics::documented_families()].map(|names| {
                    names.into_iter().filter(|name| metrics::is_totals_family(name)).collect::<Vec<_>>()
                });
            assert_eq!(found, documented, "the table in docs/operating.md");
        }
        break;
    }
    agent.finish_without_error();
    let batches = agent_recording::batches(&folder.path().join("recording"));
    let stats = &batches.last().unwrap().stats;
    println!("{} of {} requests recorded", stats.requests.fired, reads * runs as u64);
    assert!(stats.requests.fired < reads / 10, "{stats:#?}");
}

/// Returns the time of a row that may have had no request yet.
fn seconds_or_zero(row: &Row, seconds: &dyn Fn(&Row) -> f64) -> f64 {
    if row.is_empty() { 0.0 } else { seconds(row) }
}
