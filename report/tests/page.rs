//! Whole pages, compared with files in `golden/`. `BLESS=1 cargo test -p blkkin-report` updates the
//! files; review the difference.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use blkkin_report::{Alphabet, Colour, Losses, Report, Section, Style};
use unicode_width::UnicodeWidthStr;

fn style(width: usize) -> Style {
    Style { width, alphabet: Alphabet::Unicode, colour: Colour::Never }
}

fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden(name: &str, found: &str) {
    let path = golden_path(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{name} differs; review it, then set BLESS=1:\n{found}");
}

/// Compares the pages of 80 and 100 columns, and checks the lines of pages of every width.
fn golden_at_each_width(name: &str, report: &Report) {
    for columns in [80, 100] {
        golden(
            &format!("{name}-{columns}.txt"),
            &report.render(&style(columns), &common::no_losses(), &Section::ALL),
        );
    }
    assert_lines_fit(report, &common::no_losses());
}

/// Asserts for each width that every line fits, and that none has a trailing blank.
#[track_caller]
fn assert_lines_fit(report: &Report, losses: &Losses) {
    for width in 60..=160 {
        for line in report.render(&style(width), losses, &Section::ALL).lines() {
            assert!(line.width() <= width, "{} of {width} columns: {line}", line.width());
            assert_eq!(line, line.trim_end());
        }
    }
}

/// Returns a report of every trace, with I/O in flight and lost devices.
fn with_final_state() -> Report {
    let mut report = common::report(&common::all());
    report.set_final_state(common::final_state());
    report
}

/// Returns a report with operations of guests.
fn with_guests() -> Report {
    let mut report = common::report(&common::waits());
    common::guests::add(&mut report);
    report
}

#[test]
fn operations_of_guests_are_in_layers() {
    let report = with_guests();
    for columns in [80, 100] {
        let page = report.render(&style(columns), &common::no_losses(), &[Section::Guests]);
        golden(&format!("guests-{columns}.txt"), &page);
    }
    assert_lines_fit(&report, &common::no_losses());
    golden_json("guests.json", &report.to_json(&common::no_losses()));
}

#[test]
fn page_at_100_columns() {
    golden(
        "page-100.txt",
        &common::report(&common::all()).render(&style(100), &common::no_losses(), &Section::ALL),
    );
}

#[test]
fn page_at_80_columns() {
    golden("page-80.txt", &with_final_state().render(&style(80), &common::some_losses(), &Section::ALL));
}

#[test]
fn page_in_ascii() {
    let style = Style { alphabet: Alphabet::Ascii, ..style(100) };
    let page = common::report(&common::all()).render(&style, &common::no_losses(), &Section::ALL);
    assert!(page.is_ascii());
    golden("page-100-ascii.txt", &page);
}

#[test]
fn daemon_spans_at_80_and_100_columns() {
    let report = common::daemon_spans();
    golden_at_each_width("operations", &report);
    let ascii = Style { alphabet: Alphabet::Ascii, ..style(100) };
    assert!(report.render(&ascii, &common::no_losses(), &Section::ALL).is_ascii());
}

#[test]
fn waits_at_80_and_100_columns() {
    let report = common::report(&common::waits());
    golden_at_each_width("waits", &report);
    golden_json("waits.json", &report.to_json(&common::no_losses()));
}

#[test]
fn write_back_at_80_and_100_columns() {
    let report = common::report(&common::write_back::all_kinds());
    golden_at_each_width("write-back", &report);
    golden_json("write-back.json", &report.to_json(&common::no_losses()));
}

/// The prompt needs a line too.
const LINES_OF_A_TERMINAL: usize = 23;

#[test]
fn summary_fits_a_terminal() {
    for (name, report) in [
        ("summary", common::report(&common::all())),
        ("summary-waits", common::report(&common::waits())),
        ("summary-write-back", common::report(&common::write_back::all_kinds())),
        ("summary-operations", common::daemon_spans()),
        ("summary-final-state", with_final_state()),
        ("summary-guests", with_guests()),
    ] {
        let page = report.render(&style(80), &common::no_losses(), &[]);
        let is_usual = |line: &&str| {
            let unusual = ["  failed", "incomplete", "  loop", "not in these figures"];
            !unusual.iter().any(|text| line.starts_with(text))
        };
        let count = page.lines().filter(is_usual).count();
        assert!(count <= LINES_OF_A_TERMINAL, "{count}: {page}");
        golden(&format!("{name}-80.txt"), &page);
        for width in 60..=160 {
            let page = report.render(&style(width), &common::no_losses(), &[]);
            assert!(page.lines().all(|line| line.width() <= width), "{page}");
        }
    }
}

#[test]
fn every_line_of_the_summary_stays_with_sections() {
    let report = with_final_state();
    let summary = report.render(&style(100), &common::some_losses(), &[]);
    let one = report.render(&style(100), &common::some_losses(), &[Section::Files]);
    // A section takes the place of the table of calls, and of the line that names the sections.
    let calls = ["call ", "pwrite64 ", "fdatasync ", "fsync ", "and "];
    let is_kept = |line: &&str| {
        let text = line.trim_start();
        !text.is_empty() && !text.starts_with("more: ") && !calls.iter().any(|call| text.starts_with(call))
    };
    assert!(summary.contains("  failed: 1 write on loop0"), "{summary}");
    assert!(summary.lines().filter(is_kept).all(|line| one.contains(line)), "{summary}\n{one}");
    assert!(one.contains("\nfiles ──") && !one.contains("\ndevices ──"), "{one}");
}

#[test]
fn page_without_traces() {
    let page = Report::new(blkkin_report::ReportConfig::new(common::STARTED)).render(
        &style(80),
        &Losses::default(),
        &Section::ALL,
    );
    golden("page-empty.txt", &page);
}

#[test]
fn json() {
    golden_json("report.json", &with_final_state().to_json(&common::some_losses()));
}

#[test]
fn daemon_spans_as_json() {
    let mut value = common::daemon_spans().to_json(&common::no_losses());
    let all = value["slowest_operations"].as_array_mut().unwrap();
    // The query has many calls; their number is enough.
    let [many] = &mut all.iter_mut().filter(|tree| tree["operation"] == "query").collect::<Vec<_>>()[..]
    else {
        panic!("one query");
    };
    let calls = std::mem::replace(&mut many["children"], serde_json::json!([]));
    assert_eq!((calls.as_array().unwrap().len(), &many["parts_not_kept"]), (127, &173.into()));
    golden_json("operations.json", &value["slowest_operations"].take());
}

fn golden_json(name: &str, value: &serde_json::Value) {
    // Compared as values: the order of keys depends on the features that other crates enable.
    let path = golden_path(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(value).unwrap() + "\n").unwrap();
    }
    let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(*value, expected);
}

#[test]
fn lines_fit_the_width_and_have_no_trailing_blank() {
    let report = with_final_state();
    assert_lines_fit(&report, &common::some_losses());
}

#[test]
fn at_80_columns_every_table_has_all_quantiles() {
    let traces: Vec<_> = (1..20_001).map(|n| common::large(n, 100 * n)).collect();
    let page = common::report(&traces).render(&style(80), &common::no_losses(), &Section::ALL);
    let headings: Vec<&str> = page.lines().filter(|line| line.contains("p50")).collect();
    assert_eq!(headings.len(), 3, "layers, calls, devices:\n{page}");
    for heading in headings {
        assert!(["p90", "p99", "max"].iter().all(|title| heading.contains(title)), "{page}");
    }
    assert!(!page.contains('…'), "{page}");
}

#[test]
fn a_width_of_zero_gives_the_narrowest_page() {
    let report = common::report(&common::all());
    assert_eq!(
        report.render(&style(0), &common::no_losses(), &Section::ALL),
        report.render(&style(60), &common::no_losses(), &Section::ALL)
    );
}

#[test]
fn colours_change_only_escape_sequences() {
    let report = common::report(&common::all());
    let plain = report.render(&style(100), &common::no_losses(), &Section::ALL);
    let coloured =
        report.render(&Style { colour: Colour::Ansi, ..style(100) }, &common::no_losses(), &Section::ALL);
    assert!(!plain.contains('\x1b'));
    assert_eq!(without_escapes(&coloured), plain);
}

fn without_escapes(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once('m').unwrap().1)
}
