//! Log lines of the services with `--log-format json`: each line on stderr is one JSON object with
//! the same message as in text.
//!
//! No service starts here: the metrics address belongs to no interface (RFC 5737), so each run ends
//! after its first log lines with an error.

use serde_json::Value;

use crate::common;

const NO_INTERFACE: &str = "203.0.113.1:1";

fn exporter(options: &[&str]) -> common::Run {
    let service = ["exporter", "--brokers", "127.0.0.1:1", "--to", "zipkin=http://127.0.0.1:1"];
    common::run(&[&service[..], &["--metrics", NO_INTERFACE], options].concat())
}

#[test]
fn json_lines_have_the_level_the_message_and_its_fields() {
    let run = exporter(&["--log-format", "json"]).expect_code(125);
    let lines: Vec<Value> = run.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let error = lines.last().unwrap();
    assert_eq!(error["level"], "ERROR", "{error}");
    assert_eq!(error["message"], format!("cannot serve metrics at {NO_INTERFACE}"), "{error}");
    assert!(error["timestamp"].as_str().unwrap().ends_with('Z'), "{error}");
    for field in ["why", "remedy"] {
        assert!(!error[field].as_str().unwrap().is_empty(), "{error}");
    }
}

#[test]
fn text_is_the_default() {
    let run = exporter(&[]);
    let lines = format!("blkkin: cannot serve metrics at {NO_INTERFACE}\n  why: ");
    assert!(run.stderr.contains(&lines), "{run:?}");
}

#[test]
fn an_unknown_format_is_refused() {
    let run = exporter(&["--log-format", "xml"]).expect_code(2);
    assert!(run.stderr.contains("invalid value 'xml' for '--log-format <FORMAT>'"), "{run:?}");
}
