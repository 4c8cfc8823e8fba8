//! What a tool says of its own work: how many events it saw, and how many it lost.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};

use super::tool::Tool;
use crate::loss;

/// Events of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    pub(crate) seen: u64,
    pub(crate) lost: u64,
}

/// Of what a tool said that did not run: its end.
const REASON_LINES: usize = 3;
const TAIL_BYTES: u64 = 4096;
const COMPLAINTS: [&str; 7] =
    ["could not", "cannot", "unable", "failed", "not permitted", "exception", "no such"];

/// From what `tool` left in `output`; standard output and error are the files `events` and `said` there.
pub(crate) fn events(tool: Tool, output: &Path) -> Result<Events> {
    match tool {
        Tool::Untraced => Ok(Events::default()),
        Tool::Blkkin | Tool::BlkkinSpans => {
            let books = loss::losses(&output.join("report.json"))?;
            let count = |name: &str| books[name].as_u64().with_context(|| format!("no losses.{name}"));
            let lost = count("total")?;
            Ok(Events { seen: count("fired")?.saturating_sub(lost), lost })
        }
        Tool::Blktrace => {
            let said = std::fs::read_to_string(output.join("events"))?
                + &std::fs::read_to_string(output.join("said"))?;
            total_of_blktrace(&said).with_context(|| format!("blktrace said no total: {}", said.trim()))
        }
        _ => Ok(Events {
            seen: lines(&output.join("events"))?.seen,
            // bpftrace says on standard error what was lost, perf among the events.
            lost: lines(&output.join("events"))?.lost + lines(&output.join("said"))?.lost,
        }),
    }
}

/// Bytes below a folder: what it wrote.
pub(crate) fn bytes(folder: &Path) -> Result<u64> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

/// Lines, of which some say that events were lost.
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

/// `Lost 17 events` (bpftrace), `LOST 17 events!` (perf trace), `Possibly lost 17 samples` (bcc),
/// `CPU:0 [LOST 17 EVENTS]` (ftrace).
fn lost(line: &[u8]) -> u64 {
    // Nearly every line is an event: looked at as bytes, and only at its begin.
    let begins = [&b"Lost "[..], b"LOST ", b"Possibly lost ", b"CPU:"];
    if !begins.iter().any(|begin| line.starts_with(begin)) {
        return 0;
    }
    let text = String::from_utf8_lossy(line).to_lowercase();
    let behind = text.split_once("lost ").map_or("", |(_, behind)| behind);
    behind.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// `Total:   1234 events (dropped 5),   67 KiB data`
fn total_of_blktrace(said: &str) -> Option<Events> {
    let mut totals = said.lines().filter_map(|line| line.trim().strip_prefix("Total:"));
    let line = totals.next_back()?;
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    let (seen, lost) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(Events { seen, lost })
}

/// Why, in a tool's own words: the last lines that complain, or else the last ones.
pub(super) fn reason(output: &Path) -> String {
    let said = tail(&output.join("events")) + "\n" + &tail(&output.join("said"));
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let complains = |line: &&str| COMPLAINTS.iter().any(|word| line.to_lowercase().contains(word));
    let complaints: Vec<&str> = lines.iter().copied().filter(complains).collect();
    let shown = if complaints.is_empty() { lines } else { complaints };
    shown[shown.len().saturating_sub(REASON_LINES)..].join(" / ")
}

/// The end of a file, which may be long.
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
    fn what_tools_lost_is_no_event() {
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
    fn blktrace_says_a_total() {
        let said = "=== loop0 ===\n  CPU  0:      900 events,       43 KiB data\n  Total:        1234 events (dropped 5),       58 KiB data\n";
        assert_eq!(total_of_blktrace(said), Some(Events { seen: 1234, lost: 5 }));
        assert_eq!(total_of_blktrace("nothing"), None);
    }

    #[test]
    fn a_tool_that_complained_is_quoted_by_its_complaints() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("said"), "hello\ncannot open x\nbye\n").unwrap();
        assert_eq!(reason(folder.path()), "cannot open x");
        std::fs::write(folder.path().join("said"), "a\nb\n\nc\nd\n").unwrap();
        assert_eq!(reason(folder.path()), "b / c / d");
    }
}
