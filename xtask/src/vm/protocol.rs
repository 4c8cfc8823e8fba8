//! Protocol of a guest's second serial line: marks of `init.sh`, and between them the tests'
//! output.
//!
//! The kernel writes to the first line only, so that its messages cannot be mistaken for results. A
//! program without a status has failed, by the same rule as on the host: it ended without a result.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::test::ProgramStats;

const MARK: &str = "blkkin-guest: ";

/// Result of a test program in a guest.
pub(super) struct ProgramResult {
    pub(super) count: ProgramStats,
    pub(super) status: ExitStatus,
}

/// Parser of a guest's lines.
pub(super) struct Reader {
    guest: &'static str,
    running: Option<ProgramStats>,
    ran: Vec<ProgramResult>,
    done: bool,
}

impl Reader {
    pub(super) fn new(guest: &'static str) -> Self {
        Self { guest, running: None, ran: Vec::new(), done: false }
    }

    /// Parses a line and returns whether to print it.
    pub(super) fn line(&mut self, line: &str) -> bool {
        let Some(mark) = line.strip_prefix(MARK) else {
            return self.running.as_mut().is_none_or(|count| count.line(line));
        };
        if let Some(program) = mark.strip_prefix("program ") {
            self.finish_program(None);
            self.running = Some(ProgramStats::new(&format!("{}: {program}", self.guest)));
            return true;
        }
        match mark.strip_prefix("status ").map(str::parse) {
            Some(Ok(code)) => self.finish_program(Some(code)),
            _ => self.done = mark == "done",
        }
        false
    }

    /// Returns whether the guest reported that all programs ran.
    pub(super) fn is_done(&self) -> bool {
        self.done && self.running.is_none()
    }

    pub(super) fn programs(mut self) -> Vec<ProgramResult> {
        self.finish_program(None);
        self.ran
    }

    /// Ends the current program. Without a status it died with its guest.
    fn finish_program(&mut self, code: Option<i32>) {
        if let Some(count) = self.running.take() {
            let status = ExitStatus::from_raw(code.unwrap_or(1) << 8);
            self.ran.push(ProgramResult { count, status });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::TestStats;

    fn read(text: &str) -> (String, bool) {
        let mut reader = Reader::new("6.12");
        text.lines().for_each(|line| {
            reader.line(line);
        });
        let done = reader.is_done();
        let mut stats = TestStats::default();
        reader.programs().into_iter().for_each(|ran| stats.add(ran.count, ran.status));
        (stats.last_line(), done)
    }

    const PASSED: &str = "blkkin-guest: program a\nrunning 1 test\ntest x ... ok\n\n\
        test result: ok. 1 passed; 0 failed; 0 ignored\nblkkin-guest: status 0\n";

    #[test]
    fn programs_are_counted_separately() {
        let failed = "blkkin-guest: program b\ntest y ... FAILED\ntest result: FAILED. 0 passed; 1 failed\n\
            blkkin-guest: status 101\nblkkin-guest: done\n";
        assert_eq!(read(&format!("{PASSED}{failed}")), ("1 passed, 1 failed, 0 skipped".to_owned(), true));
    }

    #[test]
    fn guest_that_dies_in_a_test_has_failed() {
        let cut = format!("{PASSED}blkkin-guest: program b\nrunning 1 test\n");
        assert_eq!(read(&cut), ("1 passed, 1 failed, 0 skipped".to_owned(), false));
    }

    #[test]
    fn silent_guest_is_not_done() {
        assert_eq!(read(""), ("0 passed, 0 failed, 0 skipped".to_owned(), false));
    }
}
