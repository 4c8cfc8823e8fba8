//! Output of a tool: the number of events, and of lost ones.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::tool::Tool;
use crate::loss;

/// Event counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    pub(crate) seen: u64,
    pub(crate) lost: u64,
}

/// Number of last lines of output that an error contains.
const REASON_LINES: usize = 3;
const TAIL_BYTES: u64 = 4096;
const ERROR_WORDS: [&str; 7] =
    ["could not", "cannot", "unable", "failed", "not permitted", "exception", "no such"];

/// Counts the events in the files of `tool` in `output`: `events` is its standard output, `stderr`
/// its standard error.
pub(crate) fn events(tool: Tool, output: &Path) -> Result<Events> {
    match tool {
        Tool::Untraced => Ok(Events::default()),
        Tool::Blkkin | Tool::BlkkinSpans | Tool::BlkkinSampled | Tool::BlkkinKept => {
            let losses_json = loss::losses(&output.join("report.json"))?;
            let count = |name: &str| losses_json[name].as_u64().with_context(|| format!("no losses.{name}"));
            let lost = count("total")?;
            Ok(Events { seen: count("fired")?.saturating_sub(lost), lost })
        }
        Tool::BlkkinTop => samples(&std::fs::read_to_string(output.join("events"))?),
        Tool::BpftraceHistogram => Ok(Events {
            seen: histogram(&std::fs::read_to_string(output.join("events"))?),
            lost: lines(&output.join("stderr"))?.lost,
        }),
        Tool::Blktrace => {
            let text = std::fs::read_to_string(output.join("events"))?
                + &std::fs::read_to_string(output.join("stderr"))?;
            total_of_blktrace(&text).with_context(|| format!("blktrace printed no total: {}", text.trim()))
        }
        _ => Ok(Events {
            seen: lines(&output.join("events"))?.seen,
            // bpftrace reports losses on standard error, perf among the events.
            lost: lines(&output.join("events"))?.lost + lines(&output.join("stderr"))?.lost,
        }),
    }
}

/// Adds up the objects of `blkkin top --json`.
fn samples(text: &str) -> Result<Events> {
    let mut events = Events::default();
    for line in text.lines() {
        let sample: Value = serde_json::from_str(line)?;
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let rows = sample["rows"].as_array().context("no rows")?.iter();
        events.seen +=
            rows.map(|row| number(&row["requests"])).sum::<u64>() + number(&sample["others"]["requests"]);
        events.lost += number(&sample["untracked"]) + number(&sample["missed"]);
    }
    Ok(events)
}

/// Adds up the counts of a histogram of bpftrace: `[64, 128)   1234 |@@@ |`.
fn histogram(text: &str) -> u64 {
    let count = |line: &str| line.split_once('|')?.0.split_whitespace().last()?.parse::<u64>().ok();
    text.lines().filter(|line| line.starts_with('[')).filter_map(count).sum()
}

/// Returns the size of the files in a folder.
pub(crate) fn bytes(folder: &Path) -> Result<u64> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

/// Counts lines, and the lost events that some lines report.
fn lines(path: &Path) -> Result<Events> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut reader, mut line, mut events) =
        (BufReader::with_capacity(1 << 20, file), Vec::new(), Events::default());
    while reader.read_until(b'\n', &mut line)? > 0 {
        match lost(&line) {
            0 if line.starts_with(b"READY") => {}
            0 => events.seen += 1,
            lost => events.lost += lost,
        }
        line.clear();
    }
    Ok(events)
}

/// Parses `Lost 17 events` (bpftrace), `LOST 17 events!` (perf trace), `Possibly lost 17 samples`
/// (bcc), `CPU:0 [LOST 17 EVENTS]` (ftrace).
fn lost(line: &[u8]) -> u64 {
    // Nearly every line is an event: compare bytes, at the start of the line only.
    let begins = [&b"Lost "[..], b"LOST ", b"Possibly lost ", b"CPU:"];
    if !begins.iter().any(|begin| line.starts_with(begin)) {
        return 0;
    }
    let text = String::from_utf8_lossy(line).to_lowercase();
    let behind = text.split_once("lost ").map_or("", |(_, behind)| behind);
    behind.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Parses `Total:   1234 events (dropped 5),   67 KiB data`.
fn total_of_blktrace(text: &str) -> Option<Events> {
    let mut totals = text.lines().filter_map(|line| line.trim().strip_prefix("Total:"));
    let line = totals.next_back()?;
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    let (seen, lost) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(Events { seen, lost })
}

/// Returns the tool's error: its last lines with an error word, or else its last lines.
pub(super) fn reason(output: &Path) -> String {
    let text = tail(&output.join("events")) + "\n" + &tail(&output.join("stderr"));
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_error = |line: &&str| ERROR_WORDS.iter().any(|word| line.to_lowercase().contains(word));
    let errors: Vec<&str> = lines.iter().copied().filter(is_error).collect();
    let last = if errors.is_empty() { lines } else { errors };
    last[last.len().saturating_sub(REASON_LINES)..].join(" / ")
}

/// Reads the end of a file, which may be long.
fn tail(path: &Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(from))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        std::io::Result::Ok(String::from_utf8_lossy(&end).into_owned())
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_are_not_counted_as_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        std::fs::write(
            &path,
            "1 2 3\nLost 17 events\n4 5 6\nLOST 3 events!\nCPU:1 [LOST 5 EVENTS]\nREADY..\nlast",
        )
        .unwrap();
        assert_eq!(lines(&path).unwrap(), Events { seen: 3, lost: 25 });
    }

    #[test]
    fn counts_of_histograms_are_added() {
        let text =
            "READY..\n\n@us:\n[4, 8)        12 |@@   |\n[8, 16)    1,000 |@@@@ |\n[1K, 2K)      3 |     |\n";
        assert_eq!(histogram(text), 15);
        let sample = r#"{"rows": [{"requests": 3}, {"requests": 4}], "others": {"requests": 1}, "untracked": 2, "missed": 1}"#;
        assert_eq!(samples(&format!("{sample}\n{sample}\n")).unwrap(), Events { seen: 16, lost: 6 });
    }

    #[test]
    fn total_of_blktrace_is_parsed() {
        let text = "=== loop0 ===\n  CPU  0:      900 events,       43 KiB data\n  Total:        1234 events (dropped 5),       58 KiB data\n";
        assert_eq!(total_of_blktrace(text), Some(Events { seen: 1234, lost: 5 }));
        assert_eq!(total_of_blktrace("nothing"), None);
    }

    #[test]
    fn reason_quotes_error_lines() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("stderr"), "hello\ncannot open x\nbye\n").unwrap();
        assert_eq!(reason(folder.path()), "cannot open x");
        std::fs::write(folder.path().join("stderr"), "a\nb\n\nc\nd\n").unwrap();
        assert_eq!(reason(folder.path()), "b / c / d");
    }
}
