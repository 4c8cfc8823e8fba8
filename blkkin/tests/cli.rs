//! Arguments that the command line refuses, with the exit status of each. Nothing here loads a
//! program into the kernel.
//!
//! *Input*: the real binary, also as an unprivileged user. *Independent count*: the conventions for
//! exit codes (2 usage; 125, 126 and 127 as `env` and `timeout` use them).

use std::fs;

use crate::common::{Run, blkkin, run, run_unprivileged};

#[test]
fn a_missing_command_is_127() {
    run(&["run", "--", "no-such-command-anywhere"]).assert_refused(127, "cannot find command", "the path");
    run(&["run", "--", "./no-such-file"]).assert_refused(127, "cannot execute ./no-such-file", "a path");
}

#[test]
fn a_command_that_may_not_be_executed_is_126() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    fs::write(&file, "x").unwrap();
    run(&["run", "--", file.to_str().unwrap()]).assert_refused(126, "cannot execute", "chmod +x");
    run(&["run", "--", "/"]).assert_refused(126, "cannot execute /", "the path of a program");
}

#[test]
fn a_misspelt_system_call_gets_a_suggestion() {
    run(&["trace", "--syscall", "write,fsnyc"]).assert_refused(
        2,
        "unknown system call `fsnyc`",
        "--syscall fsync",
    );
    run(&["run", "--syscall", "pread", "--", "true"]).assert_refused(
        125,
        "unknown system call",
        "--syscall pread64",
    );
}

#[test]
fn an_unknown_device_is_refused() {
    run(&["trace", "--device", "no-such-disk"]).assert_refused(2, "unknown device `no-such-disk`", "");
    run(&["trace", "--device", "/dev/null"]).assert_refused(
        2,
        "/dev/null is not a block device",
        "--path /dev/null",
    );
}

#[test]
fn a_time_needs_a_unit() {
    run(&["trace", "--for", "30"]).assert_refused(2, "bad time `30` for --for", "--for 30s");
    run(&["trace", "--slower-than", "1 week"]).assert_refused(2, "bad time `1 week`", "--slower-than 1ms");
}

#[test]
fn more_filters_than_the_ebpf_maps_hold_are_refused() {
    let mut args = vec!["trace"];
    args.extend(["--comm", "x"].repeat(9));
    run(&args).assert_refused(2, "9 times --comm", "fewer of them");
}

#[test]
fn an_unusable_destination_is_refused_and_the_command_does_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("ran");
    let touch = marker.to_str().unwrap();
    for (destination, problem) in [
        ("zipkin=/no/such/folder/t.json", "cannot open zipkin=/no/such/folder/t.json"),
        ("zipkin=localhost:9411", "bad destination"),
        ("kafka=localhost", "no destination of kind `kafka`"),
        ("mysql=x", "unknown kind of destination `mysql`"),
        ("trace.json", "bad destination `trace.json`"),
    ] {
        run(&["run", "--to", destination, "--", "touch", touch]).assert_refused(125, problem, "");
    }
    run(&["run", "--json=/no/such/folder/r.json", "--", "touch", touch]).assert_refused(
        125,
        "cannot write",
        "",
    );
    assert!(!marker.exists());
}

#[test]
fn a_malformed_otlp_variable_is_refused_without_its_value() {
    for (variable, value, remedy) in [
        ("OTEL_EXPORTER_OTLP_HEADERS", "SECRET", "write name=value"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "api-key=SECRET%", "write %25"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "write gzip or none"),
    ] {
        let arguments =
            ["exporter", "--brokers", "127.0.0.1:1", "--metrics", "off", "--to", "otlp=grpcs://h"];
        let refused = Run::from(blkkin(&arguments).env(variable, value).output().unwrap());
        refused.assert_refused(2, &format!("bad value of {variable}"), remedy);
        assert!(!refused.stderr.contains("SECRET"), "{refused:?}");
    }
}

#[test]
fn without_privilege_run_is_125_and_names_the_missing_capability() {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("ran");
    let refused = run_unprivileged(&["run", "--", "touch", marker.to_str().unwrap()]);
    refused.assert_refused(125, "cannot trace", "");
    assert!(refused.stderr.contains("CAP_BPF"), "{refused:?}");
    assert!(!marker.exists());
    run_unprivileged(&["trace", "--for", "1ms"]).assert_refused(125, "cannot trace", "");
}

#[test]
fn without_privilege_a_missing_command_is_still_127() {
    run_unprivileged(&["run", "--", "no-such-command-anywhere"]).assert_refused(
        127,
        "cannot find command",
        "",
    );
}

#[test]
fn a_command_without_dashes_gets_the_right_form() {
    run(&["run", "ls", "-l"]).assert_refused(125, "no command to run", "blkkin run -- ls -l");
}

#[test]
fn an_unknown_option_is_a_usage_error() {
    assert_eq!(run(&["trace", "--no-such-option"]).code, Some(2));
    assert_eq!(run(&["run", "--no-such-option", "--", "true"]).code, Some(125));
    assert_eq!(run(&["no-such-command"]).code, Some(2));
}

#[test]
fn help_fits_80_columns_and_goes_to_stdout() {
    let commands = ["run", "trace", "agent", "aggregator", "exporter", "doctor", "completions"];
    let of_command = commands.iter().map(|&command| vec![command, "--help"]);
    for args in of_command.chain([vec!["--help"], vec!["run", "-h"]]) {
        let help = run(&args);
        assert_eq!(help.code, Some(0), "{args:?}");
        assert!(help.stderr.is_empty(), "{args:?}");
        for line in help.stdout.lines() {
            assert!(line.chars().count() <= 80, "{args:?}: {line}");
        }
    }
}

#[test]
fn doctor_without_privilege_has_a_verdict_for_each_probe() {
    let doctor = run_unprivileged(&["doctor"]).expect_code(1);
    assert!(doctor.stderr.is_empty(), "{doctor:?}");
    for args in
        ["fails    privileges", "CAP_BPF", "try: sudo", "call_enter", "request_complete", "blkkin help cost"]
    {
        assert!(doctor.stdout.contains(args), "{args}: {}", doctor.stdout);
    }
    for line in doctor.stdout.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn doctor_prints_json() {
    let doctor = run_unprivileged(&["doctor", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    assert_eq!(value["works"], false);
    let probes = value["probes"].as_array().unwrap();
    assert!(!probes.is_empty());
    for probe in probes {
        assert!(probe["verdict"].is_string(), "{probe}");
        assert!(probe["reason"].is_string(), "a verdict other than works has a reason: {probe}");
    }
    let privileges =
        value["checks"].as_array().unwrap().iter().find(|check| check["name"] == "privileges").unwrap();
    assert_eq!(privileges["status"], "fails");
}
