//! Counts tests by what the test programs print.
//!
//! A test that cannot run on this machine prints a line `skipped: WHY` and returns. Rust's harness calls that passed;
//! here it is counted as skipped, so that nobody takes it for a proof. A test marked `#[ignore]` is skipped too.

use std::fmt::Write;
use std::process::ExitStatus;

use anyhow::Error;

/// How a test says that it cannot run here.
const SKIPPED: &str = "skipped: ";

/// All test programs together.
#[derive(Default)]
pub(crate) struct Tally {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, count: Count, status: ExitStatus) {
        let Count { program, passed, failed, mut skipped, skipped_as_passed, results, .. } = count;
        let unseen = failed.is_empty() && !status.success();
        self.failed.extend(failed);
        if unseen {
            self.failed.push(format!("{program}: {}", how_it_ended(status)));
        }
        // A program without Rust's harness is one test.
        let one_without_harness = usize::from(results == 0 && status.success());
        self.passed += passed.saturating_sub(skipped_as_passed) + one_without_harness;
        self.skipped.append(&mut skipped);
    }

    /// A check that is no test program passed.
    pub(crate) fn passed_by_itself(&mut self) {
        self.passed += 1;
    }

    /// A check that is no test program cannot be made here.
    pub(crate) fn skipped_by_itself(&mut self, what: &str, why: &str) {
        self.skipped.push(format!("{what}: {why}"));
    }

    /// A check that is no test program failed.
    pub(crate) fn failed_by_itself(&mut self, what: &str, why: &str) {
        self.failed.push(format!("{what}: {why}"));
    }

    /// Something that is no test failed, and tests did not run because of it.
    pub(crate) fn broken(&mut self, what: &str, error: &Error) {
        self.failed.push(format!("{what}: {error:#}"));
    }

    pub(crate) fn all_passed(&self) -> bool {
        self.failed.is_empty()
    }

    /// What was skipped, then what failed: the reader's eye is at the end.
    pub(crate) fn details(&self) -> String {
        let mut text = String::new();
        let lines = [("skipped", &self.skipped), ("FAILED", &self.failed)];
        for (word, line) in lines.iter().flat_map(|(word, list)| list.iter().map(move |line| (word, line))) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{word} {line}");
        }
        text
    }

    pub(crate) fn last_line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed.len(), self.skipped.len())
    }
}

/// Where in the output of Rust's harness a line stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    /// One line a test as it ends.
    Progress,
    /// What tests that passed have printed.
    SuccessOutput,
    /// Their names once more.
    SuccessNames,
    /// What tests that failed have printed, and their names.
    Failures,
}

/// One test program, by its output line after line.
pub(crate) struct Count {
    program: String,
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
    /// Tests among the skipped that the harness counts as passed.
    skipped_as_passed: usize,
    /// How many summaries of the harness were seen: one a program, one a crate for documentation.
    results: usize,
    section: Section,
    /// The test whose output is being shown.
    speaker: String,
    skipped_by_speaker: bool,
}

impl Count {
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            passed: 0,
            failed: Vec::new(),
            skipped: Vec::new(),
            skipped_as_passed: 0,
            results: 0,
            section: Section::Progress,
            speaker: String::new(),
            skipped_by_speaker: false,
        }
    }

    /// Counts a line; whether a reader wants to see it.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            self.test(test.0, test.1);
        } else if let Some(summary) = line.strip_prefix("test result: ") {
            self.results += 1;
            self.passed += number_before(summary, " passed");
            self.section = Section::Progress;
        } else if line == "successes:" {
            let again = self.section == Section::SuccessOutput;
            self.section = if again { Section::SuccessNames } else { Section::SuccessOutput };
            return false;
        } else if line == "failures:" {
            self.section = Section::Failures;
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            name.clone_into(&mut self.speaker);
            self.skipped_by_speaker = false;
        } else if let Some(why) = line.strip_prefix(SKIPPED) {
            self.skip(why);
        }
        self.section != Section::SuccessNames && !line.is_empty()
    }

    fn test(&mut self, name: &str, result: &str) {
        if result == "FAILED" {
            self.failed.push(format!("{}: {name}", self.program));
        } else if let Some(why) = result.strip_prefix("ignored") {
            self.skipped.push(format!("{}: {name}: ignored{why}", self.program));
        }
    }

    /// Once a test, however often it says so; what a failed test said does not matter.
    fn skip(&mut self, why: &str) {
        if self.section == Section::SuccessOutput && !self.skipped_by_speaker {
            self.skipped_by_speaker = true;
            self.skipped_as_passed += 1;
            self.skipped.push(format!("{}: {}: {why}", self.program, self.speaker));
        }
    }
}

/// The number in `ok. 12 passed; 0 failed` before ` passed`.
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn how_it_ended(status: ExitStatus) -> String {
    match status.code() {
        Some(124 | 137) => "did not end in time and was killed".to_owned(),
        _ => format!("ended without a result ({status})"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn tally(output: &str, code: i32) -> Tally {
        let mut count = Count::new("p");
        for line in output.lines() {
            count.line(line);
        }
        let mut tally = Tally::default();
        tally.add(count, ExitStatus::from_raw(code << 8));
        tally
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
skipped: said twice

successes:
    a
    d

failures:

---- b stdout ----
skipped: nothing, it failed

failures:
    b

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s";

    #[test]
    fn a_test_that_says_skipped_did_not_pass() {
        let tally = tally(MIXED, 101);
        assert_eq!(tally.last_line(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(
            tally.details(),
            "skipped p: c: ignored, slow\nskipped p: d: no loop device\nFAILED p: b\n"
        );
    }

    #[test]
    fn names_of_successes_are_not_shown_again() {
        let mut count = Count::new("p");
        let shown: Vec<&str> = MIXED.lines().filter(|line| count.line(line)).collect();
        assert!(shown.contains(&"noise") && shown.contains(&"    b"));
        assert!(!shown.contains(&"    a") && !shown.contains(&"successes:"));
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let tally = tally("running 1 test\n", 101);
        assert_eq!(tally.last_line(), "0 passed, 1 failed, 0 skipped");
        assert!(!tally.all_passed());
    }

    #[test]
    fn a_program_that_was_ended_says_so() {
        assert!(tally("", 124).details().contains("did not end in time"));
    }

    #[test]
    fn a_program_without_the_harness_is_one_test() {
        assert_eq!(tally("fine\n", 0).last_line(), "1 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn documentation_has_one_summary_a_crate() {
        let two =
            "test result: ok. 3 passed; 0 failed; 0 ignored\ntest result: ok. 0 passed; 0 failed; 0 ignored";
        assert_eq!(tally(two, 0).last_line(), "3 passed, 0 failed, 0 skipped");
    }
}
