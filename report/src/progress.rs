//! Progress line: counters on one line while tracing runs.

use blkkin_wire::clock::DurationNs;
use blkkin_wire::syscalls::SyscallId;

use crate::text::line::{Line, width};
use crate::text::style::{Ink, Style};
use crate::text::units::{bytes, count, counted, duration};

/// Counters of the progress line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// System calls.
    pub calls: u64,
    /// Block requests.
    pub requests: u64,
    /// Bytes read and written by calls.
    pub bytes: u64,
    /// The slowest call.
    pub slowest: Option<(SyscallId, DurationNs)>,
    /// Sum of all losses.
    pub lost: u64,
    /// Bytes that recorded calls wrote and that are not on a disk yet.
    pub dirty_bytes: u64,
}

const SEPARATOR: &str = " · ";

impl Progress {
    /// Formats the line without a newline:
    /// `traced 12,345 calls · 3,210 requests · 14.2 MiB · slowest fsync 12.3 ms · lost 0`.
    ///
    /// Parts that do not fit are omitted, the least important first. The losses always remain.
    pub fn line(&self, style: &Style) -> String {
        let traced = format!("traced {}", counted(self.calls, "call"));
        let slowest = self.slowest.map(|(call, time)| format!("slowest {} {}", call.name(), duration(time)));
        // In printing order, each with its priority: the lowest is omitted first.
        let mut parts = vec![(traced, 3), (counted(self.requests, "request"), 2), (bytes(self.bytes), 0)];
        parts.extend(slowest.map(|slowest| (slowest, 1)));
        let lost = format!("lost {}", count(self.lost));
        let used = |parts: &[(String, u8)]| -> usize {
            parts.iter().map(|(text, _)| width(text) + width(SEPARATOR)).sum::<usize>() + width(&lost)
        };
        // The last column stays free, because a terminal may wrap after it.
        while used(&parts) + 1 > style.width {
            let Some(least) = (0..parts.len()).min_by_key(|&at| parts[at].1) else { break };
            parts.remove(least);
        }
        let mut line = Line::new();
        for (text, _) in parts {
            line = line.with(text, Ink::Plain).with(SEPARATOR, Ink::Dim);
        }
        line.with(lost, if self.lost > 0 { Ink::Alarm } else { Ink::Plain }).paint(style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::style::{Alphabet, Colour};

    fn line(width: usize) -> String {
        let progress = Progress {
            calls: 12_345,
            requests: 3_210,
            bytes: 14_890_000,
            slowest: SyscallId::by_name("fsync").map(|call| (call, DurationNs(12_345_678))),
            lost: 0,
            dirty_bytes: 0,
        };
        progress.line(&Style { width, alphabet: Alphabet::Unicode, colour: Colour::Never })
    }

    #[test]
    fn a_wide_line_has_every_part() {
        assert_eq!(
            line(100),
            "traced 12,345 calls · 3,210 requests · 14.2 MiB · slowest fsync 12.3 ms · lost 0"
        );
    }

    #[test]
    fn the_line_fits_any_width_and_always_has_the_losses() {
        assert_eq!(line(80), "traced 12,345 calls · 3,210 requests · slowest fsync 12.3 ms · lost 0");
        assert_eq!(line(50), "traced 12,345 calls · 3,210 requests · lost 0");
        assert_eq!(line(30), "traced 12,345 calls · lost 0");
        assert_eq!(line(10), "lost 0");
        for columns in 8..120 {
            assert!(width(&line(columns)) < columns);
        }
    }
}
