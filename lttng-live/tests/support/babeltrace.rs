//! Output of babeltrace2 for a trace: a line per event, and its counts of losses.

use std::path::Path;
use std::process::Command;

/// Lines with `timestamp = …`, and everything from `name = …` on.
pub(crate) struct Output {
    pub(crate) lines: Vec<String>,
    /// Sums of "discarded N events" and "discarded N packets".
    pub(crate) events_lost: u64,
    pub(crate) packets_lost: u64,
}

pub(crate) fn read(folder: &Path) -> Output {
    let output = Command::new("babeltrace2")
        .args(["--clock-cycles", "--no-delta", "--names=all", "--color=never"])
        .arg(folder)
        .output()
        .expect("babeltrace2 runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "babeltrace2: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(|line| {
        // `trace:hostname = …` may be between them.
        let (time, _) = line.split_once(", ").expect("a timestamp first");
        let (_, rest) = line.split_once(", name = ").expect("a name");
        format!("{time}, name = {rest}")
    });
    let (mut events_lost, mut packets_lost) = (0, 0);
    for line in errors.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for three in words.windows(3) {
            if let ["discarded", count, what] = three {
                let count: u64 = count.parse().unwrap_or(0);
                match what.trim_end_matches('s') {
                    "event" => events_lost += count,
                    "packet" => packets_lost += count,
                    _ => {}
                }
            }
        }
    }
    Output { lines: lines.collect(), events_lost, packets_lost }
}
