//! The files of configs/ are valid and complete.
//!
//! *Input*: the real files. *Independent count*: blkkin's own parser and `--help`, for the option
//! files; `systemd-analyze`, for the units; Grafana's grid, for the dashboard.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common;
use crate::support::needs;

const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs");
const SERVICES: [&str; 3] = ["agent", "aggregator", "exporter"];
/// Not an address of this machine (RFC 5737): refused after all other arguments were accepted.
const FOREIGN_ADDRESS: &str = "203.0.113.1:1";

fn example(service: &str) -> String {
    fs::read_to_string(format!("{CONFIGS}/{service}.toml")).unwrap()
}

/// Uncomments the options, except those that name parts of a machine.
fn uncommented(example: &str) -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if ["cgroup", "device", "\"ssl.ca"].iter().any(|start| rest.starts_with(start)) => {
            line.to_owned()
        }
        Some(rest) if rest.starts_with('[') || rest.starts_with('"') || is_key(rest) => rest.to_owned(),
        _ => line.to_owned(),
    };
    example.lines().map(|text| line(text) + "\n").collect()
}

/// Returns whether a line is an option such as `save-every = …`, and not a sentence.
fn is_key(text: &str) -> bool {
    text.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
}

/// Runs the service with these options in a file, and further arguments.
fn run(service: &str, file: &str, args: &[&str]) -> common::Run {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join(format!("{service}.toml"));
    let token = folder.path().join("metrics-token");
    fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    fs::write(&config, file.replace("/etc/blkkin/metrics-token", token.to_str().unwrap())).unwrap();
    common::run(&[&[service, "-c", config.to_str().unwrap()], args].concat())
}

/// docs/trust.md names a test for each promise, as `file`: `test`.
#[test]
fn each_test_that_is_named_as_evidence_exists() {
    let root = Path::new(CONFIGS).parent().unwrap();
    let page = fs::read_to_string(root.join("docs/trust.md")).unwrap();
    let mut named = 0;
    for (before, after) in
        page.match_indices("`: `").map(|(at, mark)| (&page[..at], &page[at + mark.len()..]))
    {
        let (file, test) = (before.rsplit('`').next().unwrap(), after.split('`').next().unwrap());
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&format!("fn {test}(")), "{file} has no test {test}");
        named += 1;
    }
    assert!(named > 15, "{named}");
}

#[test]
fn an_unknown_key_is_reported_with_a_suggestion() {
    for (service, key, suggestion) in [
        ("agent", "broker", "brokers"),
        ("aggregator", "slower_than", "slower-than"),
        ("aggregator", "instanse", "instance"),
        ("exporter", "metric", "metrics"),
        ("exporter", "groups", "group"),
    ] {
        let run = run(service, &format!("{key} = 'x'\n"), &[]).expect_code(2);
        let names = [format!("unknown key `{key}` in "), format!("`{suggestion}` is the nearest")];
        assert!(names.iter().all(|name| run.stderr.contains(name)), "{run:?}");
    }
}

#[test]
fn each_example_is_accepted_unchanged_and_with_every_option_uncommented() {
    // An agent loads its programs before it serves metrics.
    needs!();
    for file in [example, |service: &str| uncommented(&example(service))] {
        for service in &SERVICES[1..] {
            let run = run(service, &file(service), &["--metrics", FOREIGN_ADDRESS]).expect_code(125);
            assert!(run.stderr.contains(&format!("cannot serve metrics at {FOREIGN_ADDRESS}")), "{run:?}");
        }
        // The last argument is refused after all the keys were read.
        let run = run("agent", &file("agent"), &["--domain", "x"]);
        assert!(run.stderr.contains("bad machine id `x`"), "{run:?}");
    }
}

#[test]
fn each_option_of_a_service_is_in_its_example() {
    for service in &SERVICES[1..] {
        let help = common::run(&[service, "--help"]).stdout;
        let options: BTreeSet<&str> = help
            .lines()
            .filter_map(|line| line.split_once("--").filter(|(before, _)| before.trim_end().len() <= 5))
            .map(|(_, option)| option.split([' ', '=']).next().unwrap())
            // --from is an option of replay only.
            .filter(|option| !["config", "help", "from"].contains(option))
            .collect();
        assert!(options.len() > 5, "{help}");
        let example = uncommented(&example(service));
        let keys: BTreeSet<&str> = example
            .lines()
            .filter(|line| is_key(line) || line.starts_with('['))
            .map(|line| line.trim_matches(['[', ']']).split(' ').next().unwrap())
            .filter(|key| !key.starts_with('"'))
            .collect();
        assert_eq!(options, keys, "{service}");
    }
}

/// Writes the unit with the path of the built binary.
fn unit(service: &str, folder: &Path) -> std::path::PathBuf {
    let name = format!("blkkin-{service}.service");
    let unit = fs::read_to_string(format!("{CONFIGS}/{name}")).unwrap();
    let command = format!("ExecStart=/usr/local/bin/blkkin {service} -c /etc/blkkin/{service}.toml");
    assert!(unit.lines().any(|line| line == command), "{unit}");
    let path = folder.join(name);
    fs::write(&path, unit.replace("/usr/local/bin/blkkin", env!("CARGO_BIN_EXE_blkkin"))).unwrap();
    path
}

/// Each panel has its own id, overlaps no other in 24 columns (Grafana's grid) and has a title;
/// each query uses the data source that the dashboard lets its user choose.
#[test]
fn the_panels_of_the_dashboard_are_distinct() {
    let text = fs::read_to_string(format!("{CONFIGS}/grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut occupied = BTreeSet::new();
    for panel in panels {
        let position = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(position("x") + position("w") <= 24 && position("w") > 0 && position("h") > 0, "{panel}");
        for column in position("x")..position("x") + position("w") {
            for row in position("y")..position("y") + position("h") {
                assert!(occupied.insert((column, row)), "it overlaps another: {panel}");
            }
        }
        assert!(!panel["title"].as_str().unwrap().is_empty(), "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["options"]["legend"]["showLegend"].is_boolean(), "{panel}");
        let targets = panel["targets"].as_array().unwrap();
        let names: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert!(!targets.is_empty() && names.len() == targets.len(), "{panel}");
        let sources = targets.iter().chain([panel]).map(|query| &query["datasource"]["uid"]);
        assert!(sources.into_iter().all(|source| source == "${datasource}"), "{panel}");
    }
}

#[test]
fn systemd_accepts_each_unit_and_rates_its_exposure_low() {
    needs!("systemd-analyze");
    let folder = tempfile::tempdir().unwrap();
    let analyze = |args: &[&str], path: &Path| -> Output {
        Command::new("systemd-analyze").args(args).arg(path).output().unwrap()
    };
    // Exposure of 100: an agent has five capabilities and sees all processes, the others have none
    // and see no device.
    for (service, exposure_max) in [("agent", 45), ("aggregator", 15), ("exporter", 15)] {
        let path = unit(service, folder.path());
        let verified = analyze(&["verify"], &path);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
        let threshold = format!("--threshold={exposure_max}");
        let security = analyze(&["security", "--offline=true", "--no-pager", &threshold], &path);
        let errors = String::from_utf8_lossy(&security.stderr);
        if errors.contains("unrecognized option") {
            println!("skipped: this systemd-analyze rates only installed units");
            continue;
        }
        assert!(security.status.success(), "{}{errors}", String::from_utf8_lossy(&security.stdout));
    }
}
