//! Counts tests from the output of the test programs.
//!
//! A test that cannot run on this machine prints a line `skipped: REASON` and returns. Rust's
//! harness counts it as passed; this module counts it as skipped. A test marked `#[ignore]` is
//! skipped too.

use std::fmt::Write;
use std::process::ExitStatus;

use anyhow::Error;

use super::skips::Skip;

/// Prefix of the line by which a test reports that it cannot run here.
const SKIPPED: &str = "skipped: ";
/// Lines of a failed test's panic that the list at the end repeats: its place and its message. The two values
/// of `assert_eq` follow a message of any length, and are repeated too.
const REASON_LINES: usize = 4;
const REASON_VALUES: [&str; 2] = ["  left: ", " right: "];
/// Maximum number of characters of such a line.
const REASON_WIDTH: usize = 400;

/// Counters of all test programs.
#[derive(Default)]
pub(crate) struct TestStats {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<Skip>,
}

impl TestStats {
    pub(crate) fn add(&mut self, count: ProgramStats, status: ExitStatus) {
        let ProgramStats { program, passed, failed, mut skipped, skipped_as_passed, results, .. } = count;
        let died = failed.is_empty() && !status.success();
        self.failed.extend(failed);
        if died {
            self.failed.push(format!("{program}: {}", exit_reason(status)));
        }
        // A program without Rust's harness is one test.
        let one_without_harness = usize::from(results == 0 && status.success());
        self.passed += passed.saturating_sub(skipped_as_passed) + one_without_harness;
        self.skipped.append(&mut skipped);
    }

    /// Counts a passed check that is not a test program.
    pub(crate) fn add_passed(&mut self) {
        self.passed += 1;
    }

    /// Counts a check that is not a test program and cannot run here.
    pub(crate) fn add_skipped(&mut self, what: &str, why: &str) {
        self.skipped.push(Skip { program: what.to_owned(), test: String::new(), reason: why.to_owned() });
    }

    /// Counts each skip that is not in the list of allowed skips as a failure.
    pub(crate) fn fail_unlisted_skips(&mut self) {
        let (allowed, unlisted): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.skipped).into_iter().partition(Skip::is_allowed);
        self.skipped = allowed;
        let failure = |skip: Skip| format!("{skip} (skipped, and xtask/src/test/skips.rs does not allow it)");
        self.failed.extend(unlisted.into_iter().map(failure));
    }

    /// Counts a failed check that is not a test program.
    pub(crate) fn add_failed(&mut self, what: &str, why: &str) {
        self.failed.push(format!("{what}: {why}"));
    }

    /// Counts a failure that prevented tests from running.
    pub(crate) fn add_error(&mut self, what: &str, error: &Error) {
        self.failed.push(format!("{what}: {error:#}"));
    }

    pub(crate) fn all_passed(&self) -> bool {
        self.failed.is_empty()
    }

    /// Lists the skipped tests, then the failed ones, because readers look at the end.
    pub(crate) fn details(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for skip in &self.skipped {
            let _ = writeln!(text, "skipped {skip}");
        }
        for failure in &self.failed {
            let _ = writeln!(text, "FAILED {failure}");
        }
        text
    }

    pub(crate) fn last_line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed.len(), self.skipped.len())
    }
}

/// Section of the harness' output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    /// Line per test as it ends.
    Progress,
    /// Output of passed tests.
    SuccessOutput,
    /// Names of the passed tests, repeated.
    SuccessNames,
    /// Output and names of failed tests.
    Failures,
}

/// Counters of one test program, updated with each line of its output.
pub(crate) struct ProgramStats {
    program: String,
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<Skip>,
    /// Skipped tests that the harness counts as passed.
    skipped_as_passed: usize,
    /// Number of summaries of the harness: one per program, or one per crate for doc tests.
    results: usize,
    section: Section,
    /// Test whose output is being read.
    current_test: String,
    current_skipped: bool,
    /// Lines of the current test's panic that are still to be repeated; none outside a panic.
    reason_lines: Option<usize>,
}

impl ProgramStats {
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            passed: 0,
            failed: Vec::new(),
            skipped: Vec::new(),
            skipped_as_passed: 0,
            results: 0,
            section: Section::Progress,
            current_test: String::new(),
            current_skipped: false,
            reason_lines: None,
        }
    }

    /// Counts a line and returns whether to print it.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            self.test(test.0, test.1);
        } else if let Some(summary) = line.strip_prefix("test result: ") {
            self.results += 1;
            self.passed += number_before(summary, " passed");
            self.section = Section::Progress;
        } else if line == "successes:" {
            let repeated = self.section == Section::SuccessOutput;
            self.section = if repeated { Section::SuccessNames } else { Section::SuccessOutput };
            return false;
        } else if line == "failures:" {
            self.section = Section::Failures;
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            name.clone_into(&mut self.current_test);
            self.current_skipped = false;
            self.reason_lines = None;
        } else if self.section == Section::Failures {
            self.failure_line(line);
        } else if let Some(why) = line.strip_prefix(SKIPPED) {
            self.skip(why);
        }
        self.section != Section::SuccessNames && !line.is_empty()
    }

    fn test(&mut self, name: &str, result: &str) {
        if result == "FAILED" {
            self.failed.push(format!("{}: {name}", self.program));
        } else if let Some(why) = result.strip_prefix("ignored") {
            self.push_skip(name.to_owned(), format!("ignored{why}"));
        }
    }

    /// Adds the place and the message of a panic to the failure of the current test.
    fn failure_line(&mut self, line: &str) {
        if line.contains("' panicked at ") || line.contains(") panicked at ") {
            self.reason_lines = Some(REASON_LINES);
        } else if line == "stack backtrace:" || line.is_empty() {
            self.reason_lines = None;
        }
        let Some(left) = self.reason_lines else { return };
        if left == 0 && !REASON_VALUES.iter().any(|value| line.starts_with(value)) {
            return;
        }
        self.reason_lines = Some(left.saturating_sub(1));
        let name = format!("{}: {}", self.program, self.current_test);
        let failure = self.failed.iter_mut().find(|failure| failure.split('\n').next() == Some(&name));
        if let Some(failure) = failure {
            failure.push_str("\n    ");
            failure.extend(line.chars().take(REASON_WIDTH));
        }
    }

    fn push_skip(&mut self, test: String, reason: String) {
        self.skipped.push(Skip { program: self.program.clone(), test, reason });
    }

    /// Counts a test as skipped once, however often it prints a reason. Failed tests are ignored.
    fn skip(&mut self, why: &str) {
        if self.section == Section::SuccessOutput && !self.current_skipped {
            self.current_skipped = true;
            self.skipped_as_passed += 1;
            self.push_skip(self.current_test.clone(), why.to_owned());
        }
    }
}

/// Parses the number before ` passed` in `ok. 12 passed; 0 failed`.
fn number_before(text: &str, label: &str) -> usize {
    let before = text.split(label).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn exit_reason(status: ExitStatus) -> String {
    match status.code() {
        Some(124 | 137) => "did not end in time and was killed".to_owned(),
        _ => format!("ended without a result ({status})"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn stats(output: &str, code: i32) -> TestStats {
        let mut count = ProgramStats::new("p");
        for line in output.lines() {
            count.line(line);
        }
        let mut stats = TestStats::default();
        stats.add(count, ExitStatus::from_raw(code << 8));
        stats
    }

    const MIXED: &str = "running 4 tests
test a ... ok
test b ... FAILED
test c ... ignored, slow
test d ... ok

successes:

---- d stdout ----
noise
skipped: no loop device
skipped: printed twice

successes:
    a
    d

failures:

---- b stdout ----
skipped: nothing, it failed
noise
thread 'b' (7) panicked at p.rs:1:2:
assertion failed
  left: 1
stack backtrace:
   0: main

failures:
    b

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s";

    #[test]
    fn skipped_test_is_not_counted_as_passed() {
        let stats = stats(MIXED, 101);
        assert_eq!(stats.last_line(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(
            stats.details(),
            "skipped p: c: ignored, slow\nskipped p: d: no loop device\nFAILED p: b\n    \
             thread 'b' (7) panicked at p.rs:1:2:\n    assertion failed\n      left: 1\n"
        );
    }

    #[test]
    fn values_after_a_long_message_are_repeated() {
        let panic = "failures:\n\n---- b stdout ----\nthread 'b' (7) panicked at p.rs:1:2:\nassertion failed: {\n\
                     a,\n    b,\n    c,\n}\n  left: 1\n right: 2\nstack backtrace:\n  left: 3\n";
        let stats = stats(&format!("test b ... FAILED\n{panic}"), 101);
        let repeated = "thread 'b' (7) panicked at p.rs:1:2:\n    assertion failed: {\n    a,\n        b,\n      \
                        left: 1\n     right: 2\n";
        assert_eq!(stats.details(), format!("FAILED p: b\n    {repeated}"));
    }

    #[test]
    fn unlisted_skip_is_a_failure() {
        let mut stats = stats(MIXED, 101);
        stats.fail_unlisted_skips();
        assert_eq!(stats.last_line(), "1 passed, 3 failed, 0 skipped");
        assert!(stats.details().contains("FAILED p: d: no loop device (skipped, and"), "{}", stats.details());
    }

    #[test]
    fn names_of_passed_tests_are_hidden() {
        let mut count = ProgramStats::new("p");
        let shown: Vec<&str> = MIXED.lines().filter(|line| count.line(line)).collect();
        assert!(shown.contains(&"noise") && shown.contains(&"    b"));
        assert!(!shown.contains(&"    a") && !shown.contains(&"successes:"));
    }

    #[test]
    fn crashed_program_counts_as_failed() {
        let stats = stats("running 1 test\n", 101);
        assert_eq!(stats.last_line(), "0 passed, 1 failed, 0 skipped");
        assert!(!stats.all_passed());
    }

    #[test]
    fn killed_program_reports_timeout() {
        assert!(stats("", 124).details().contains("did not end in time"));
    }

    #[test]
    fn program_without_harness_counts_as_one_test() {
        assert_eq!(stats("fine\n", 0).last_line(), "1 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn doc_tests_have_one_summary_per_crate() {
        let two =
            "test result: ok. 3 passed; 0 failed; 0 ignored\ntest result: ok. 0 passed; 0 failed; 0 ignored";
        assert_eq!(stats(two, 0).last_line(), "3 passed, 0 failed, 0 skipped");
    }
}
