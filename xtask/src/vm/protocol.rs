//! What comes over a guest's second serial line: `init.sh`'s marks, and between them the tests' own words.
//!
//! The kernel writes to the first line only, so that nothing it says is taken for a result. A program whose status did
//! not come is a failed one, by the same rule as on the host: it ended without a result.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::test::Count;

const MARK: &str = "blkkin-guest: ";

/// A test program that ran in a guest.
pub(super) struct Ran {
    pub(super) count: Count,
    pub(super) status: ExitStatus,
}

/// Reads a guest's lines.
pub(super) struct Reader {
    guest: &'static str,
    running: Option<Count>,
    ran: Vec<Ran>,
    done: bool,
}

impl Reader {
    pub(super) fn new(guest: &'static str) -> Self {
        Self { guest, running: None, ran: Vec::new(), done: false }
    }

    /// Takes a line; whether a person wants to see it.
    pub(super) fn line(&mut self, line: &str) -> bool {
        let Some(mark) = line.strip_prefix(MARK) else {
            return self.running.as_mut().is_none_or(|count| count.line(line));
        };
        if let Some(program) = mark.strip_prefix("program ") {
            self.end(None);
            self.running = Some(Count::new(&format!("{}: {program}", self.guest)));
            return true;
        }
        match mark.strip_prefix("status ").map(str::parse) {
            Some(Ok(code)) => self.end(Some(code)),
            _ => self.done = mark == "done",
        }
        false
    }

    /// Whether it said that it had run everything.
    pub(super) fn is_done(&self) -> bool {
        self.done && self.running.is_none()
    }

    pub(super) fn programs(mut self) -> Vec<Ran> {
        self.end(None);
        self.ran
    }

    /// The program that runs is over; without a status it died with its guest.
    fn end(&mut self, code: Option<i32>) {
        if let Some(count) = self.running.take() {
            let status = ExitStatus::from_raw(code.unwrap_or(1) << 8);
            self.ran.push(Ran { count, status });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Tally;

    fn read(text: &str) -> (String, bool) {
        let mut reader = Reader::new("6.12");
        text.lines().for_each(|line| {
            reader.line(line);
        });
        let done = reader.is_done();
        let mut tally = Tally::default();
        reader.programs().into_iter().for_each(|ran| tally.add(ran.count, ran.status));
        (tally.last_line(), done)
    }

    const PASSED: &str = "blkkin-guest: program a\nrunning 1 test\ntest x ... ok\n\n\
        test result: ok. 1 passed; 0 failed; 0 ignored\nblkkin-guest: status 0\n";

    #[test]
    fn programs_are_counted_apart() {
        let failed = "blkkin-guest: program b\ntest y ... FAILED\ntest result: FAILED. 0 passed; 1 failed\n\
            blkkin-guest: status 101\nblkkin-guest: done\n";
        assert_eq!(read(&format!("{PASSED}{failed}")), ("1 passed, 1 failed, 0 skipped".to_owned(), true));
    }

    #[test]
    fn a_guest_that_dies_in_a_test_is_not_done_and_has_failed() {
        let cut = format!("{PASSED}blkkin-guest: program b\nrunning 1 test\n");
        assert_eq!(read(&cut), ("1 passed, 1 failed, 0 skipped".to_owned(), false));
    }

    #[test]
    fn a_guest_that_says_nothing_is_not_done() {
        assert_eq!(read(""), ("0 passed, 0 failed, 0 skipped".to_owned(), false));
    }
}
