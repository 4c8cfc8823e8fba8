//! babeltrace2's word about a trace: one line an event, and what it says was lost.

use std::path::Path;
use std::process::Command;

/// Its lines, from `timestamp = …` and `name = …` on; what stands between (of the trace's environment) left out.
pub(crate) struct Heard {
    pub(crate) lines: Vec<String>,
    /// Sum of "discarded N events" and "discarded N packets".
    pub(crate) events_lost: u64,
    pub(crate) packets_lost: u64,
}

pub(crate) fn listen(folder: &Path) -> Heard {
    let output = Command::new("babeltrace2")
        .args(["--clock-cycles", "--no-delta", "--names=all", "--color=never"])
        .arg(folder)
        .output()
        .expect("babeltrace2 runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "babeltrace2: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(|line| {
        // Between them may stand `trace:hostname = …`.
        let (time, _) = line.split_once(", ").expect("a time and more");
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
    Heard { lines: lines.collect(), events_lost, packets_lost }
}
