//! Metrics of an agent, an aggregator and an exporter, scraped by a real Prometheus while they
//! process the requests of a real disk.
//!
//! *Input*: fio on a loop device. Prometheus must have the same series as the services' `/metrics`,
//! its exemplars must be traces that were exported, and every metric in `configs/` and `docs/` must
//! exist. promtool checks the format and the alerts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::broker::Broker;
use crate::support::disk::Disk;
use crate::support::fio::Fio;
use crate::support::live::eventually;
use crate::support::metrics::{self, get, get_as};
use crate::support::prometheus;
use crate::support::prometheus::{Prometheus, program};
use crate::support::service;
use crate::support::{needs, or_skip};

const REQUESTS: u32 = 400;
const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs");

/// Service under test.
struct Service {
    job: &'static str,
    process: service::Service,
}

impl Service {
    /// Starts the service and waits until its log contains `ready_text`.
    fn start(disk: &Disk, job: &'static str, args: &[&str], ready_text: &str) -> Service {
        let name = job.strip_prefix("blkkin-").unwrap();
        let args = [&[name, "--metrics", "127.0.0.1:0"], args].concat();
        let process = service::Service::start(&disk.file(""), job, &args);
        assert!(eventually(|| process.output().contains(ready_text)), "{}", process.output());
        Service { job, process }
    }

    fn address(&self) -> String {
        metrics::address(&self.process.output()).to_owned()
    }

    fn value(&self, name: &str) -> f64 {
        self.value_where(name, |_| true)
    }

    /// Returns the sum of the series of this name whose labels are chosen.
    fn value_where(&self, name: &str, chosen: impl Fn(&BTreeMap<String, String>) -> bool) -> f64 {
        // A service omits series without a value.
        let all = metrics::series(&get(&self.address(), "/metrics"));
        let found = all.into_iter().filter(|(labels, _)| labels["__name__"] == name && chosen(labels));
        found.map(|(_, value)| value).sum()
    }

    /// Stops the service, and asserts that it exits without an error.
    fn finish(self) {
        self.process.finish_without_error();
    }
}

/// Runs fio on the disk.
fn load(disk: &Disk) {
    let report = disk.file("fio.json");
    let (target, pattern) = (disk.node(), "randwrite");
    let fio = Fio { target, pattern, jobs: 2, requests: REQUESTS / 2, bytes: 4096, report: &report };
    let args = fio.args();
    assert!(Command::new(&args[0]).args(&args[1..]).status().unwrap().success());
}

/// Asserts that all are scraped, and that Prometheus has the services' own values.
///
/// An agent never rests: other programs of the machine give it events between any two scrapes. So a
/// service's values are read before a scrape and after it, and the scraped value is between. A
/// gauge may move to and fro in that time, and is compared again until it is once between.
fn assert_equal(prometheus: &Prometheus, services: &[&Service; 3]) {
    let up = || prometheus.query("up").unwrap();
    let all = eventually(|| up().values().filter(|value| **value == 1.0).count() == services.len());
    assert!(all, "{:?}", up());
    for service in services {
        let own = || metrics::series(&get(&service.address(), "/metrics"));
        let mut compared = BTreeSet::new();
        let mut differ = Vec::new();
        let equal = eventually(|| {
            let before = own();
            let scraped = scraped_after(prometheus, service.job, SystemTime::now());
            let after = own();
            assert!(before.len() > 10, "{before:?}");
            let unknown: Vec<_> =
                scraped.keys().filter(|series| !after.contains_key(*series) && !is_gauge(series)).collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", service.job);
            differ.clear();
            for (series, first) in &before {
                let (found, last) = (scraped.get(series), after.get(series));
                let between = |value: &f64, last: &f64| (first.min(*last)..=first.max(*last)).contains(value);
                match found.zip(last).is_some_and(|(value, last)| between(value, last)) {
                    true => _ = compared.insert(series.clone()),
                    false if compared.contains(series) && is_gauge(series) => {}
                    false => differ.push((series.clone(), *first, found.copied(), last.copied())),
                }
            }
            assert!(differ.iter().all(|(series, ..)| is_gauge(series)), "{}: {differ:?}", service.job);
            differ.is_empty()
        });
        assert!(equal, "{}: {differ:?}", service.job);
    }
}

/// Returns whether the values of the series may fall.
fn is_gauge(series: &BTreeMap<String, String>) -> bool {
    let suffixes = ["_total", "_bucket", "_count", "_sum"];
    !suffixes.iter().any(|suffix| series["__name__"].ends_with(suffix))
}

/// Returns a job's series of a scrape that began after `time`.
fn scraped_after(prometheus: &Prometheus, job: &str, time: SystemTime) -> prometheus::Series {
    let time = time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let begun = || prometheus.query(&format!("timestamp(up{{job=\"{job}\"}}) > {time:.3}")).unwrap();
    assert!(eventually(|| !begun().is_empty()), "{job} is scraped no more");
    let scraped = prometheus.query(&format!("{{job=\"{job}\",__name__=~\"blkkin_.*\"}}")).unwrap();
    let own_labels = |(mut labels, value): (BTreeMap<String, String>, f64)| {
        labels.retain(|name, _| name != "job" && name != "instance");
        (labels, value)
    };
    scraped.into_iter().map(own_labels).collect()
}

/// Returns the trace ids of Prometheus' exemplars.
fn exemplars(prometheus: &Prometheus) -> BTreeSet<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let [start, end] = [now - 3_600, now + 60].map(|time| time.to_string());
    let args = [("query", "blkkin_layer_seconds_bucket"), ("start", &*start), ("end", &*end)];
    let found = prometheus.request("query_exemplars", &args).unwrap();
    let exemplars =
        found.as_array().unwrap().iter().flat_map(|series| series["exemplars"].as_array().unwrap());
    exemplars.map(|exemplar| exemplar["labels"]["trace_id"].as_str().unwrap().to_owned()).collect()
}

/// Number of alerts.
const ALERTS: usize = 14;

/// A query of the dashboard, and the labels that each of its results must have.
struct Query {
    expression: String,
    labels: Vec<String>,
}

/// Returns each query of the dashboard as Grafana sends it: of its panels, with the labels in their
/// legends, and of its variables.
fn queries() -> Vec<Query> {
    let dashboard = fs::read_to_string(format!("{CONFIGS}/grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let filled = |expression: &str| {
        let filled = expression.replace("$__rate_interval", "1m");
        filled.replace("$node", ".*").replace("$device", ".*")
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let targets = list(&dashboard["panels"]).into_iter().flat_map(|panel| list(&panel["targets"]));
    let query_of_panel = |target: Value| {
        let legend = target["legendFormat"].as_str().unwrap();
        let labels =
            legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap().trim().to_owned());
        Query { expression: filled(target["expr"].as_str().unwrap()), labels: labels.collect() }
    };
    let variables = list(&dashboard["templating"]["list"]).into_iter().filter(|one| one["type"] == "query");
    let query_of_variable = |variable: Value| {
        let query = variable["query"]["query"].as_str().unwrap();
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
        let (series, label) = inner.rsplit_once(", ").unwrap();
        Query {
            expression: format!("count by ({label}) ({})", filled(series)),
            labels: vec![label.to_owned()],
        }
    };
    targets.map(query_of_panel).chain(variables.map(query_of_variable)).collect()
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("blkkin_")).map(str::to_owned).collect()
}

fn assert_named(services: &[&Service; 3], prometheus: &Prometheus) {
    let text: String = services.iter().map(|service| get(&service.address(), "/metrics")).collect();
    let exposed: BTreeSet<String> = services
        .iter()
        .flat_map(|service| metrics::series(&get(&service.address(), "/metrics")))
        .map(|(labels, _)| labels["__name__"].clone())
        .collect();
    let queries = queries();
    let expressions: Vec<_> = queries.iter().map(|query| &query.expression).collect();
    assert!(expressions.len() > 30, "{}", expressions.len());
    let rules = fs::read_to_string(format!("{CONFIGS}/prometheus-alerts.yml")).unwrap();
    for text in expressions.iter().copied().chain([&rules]) {
        let unknown: Vec<_> = names(text).into_iter().filter(|name| !exposed.contains(name)).collect();
        assert!(unknown.is_empty(), "no service exposes {unknown:?} of {text}");
    }
    // A rate needs a second sample.
    let has_result = |expression: &&String| {
        expression.ends_with("> 0") || !prometheus.query(expression).unwrap().is_empty()
    };
    let empty =
        || expressions.iter().copied().filter(|expression| !has_result(expression)).collect::<Vec<_>>();
    assert!(eventually(|| empty().is_empty()), "no result for {:#?}", empty());
    for Query { expression, labels } in &queries {
        for series in prometheus.query(expression).unwrap().keys() {
            let unnamed: Vec<_> = labels.iter().filter(|label| !series.contains_key(*label)).collect();
            assert!(unnamed.is_empty(), "no {unnamed:?} in {series:?} of {expression}");
        }
    }
    // The metrics that are exposed are those in the docs. Those of daemons are checked in
    // `tests/daemons.rs`, those of NBD clients in `tests/two_nodes.rs`, those of USDT events in
    // `tests/postgres.rs`, those of a flight recorder in `tests/flight_recorder.rs`, those of a budget in
    // `tests/budget.rs`, those of changes and percentiles in `tests/ctl.rs`, those of totals in
    // `tests/request_totals.rs`.
    let checked_elsewhere = |name: &String| {
        metrics::is_lttng_family(name)
            || metrics::is_nbd_family(name)
            || metrics::is_usdt_family(name)
            || metrics::is_flight_family(name)
            || metrics::is_budget_family(name)
            || metrics::is_ctl_family(name)
            || metrics::is_totals_family(name)
            || metrics::is_percentile_family(name)
    };
    let documented: BTreeSet<_> =
        metrics::documented_families().into_iter().filter(|name| !checked_elsewhere(name)).collect();
    assert_eq!(metrics::families(&text), documented, "the table in docs/operating.md");
}

/// Runs promtool on a text, and asserts that it finds no error.
fn promtool(args: &[&str], text: &str) {
    let mut tool = Command::new(program("promtool").unwrap())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let output_text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{output_text:?}\n{text}");
}

#[test]
fn prometheus_has_the_services_metrics_and_its_exemplars_are_traces() {
    needs!("fio", "losetup");
    or_skip!(program("prometheus"));
    let disk = or_skip!(Disk::raw(64 << 20));
    let broker = or_skip!(Broker::start());
    let brokers = broker.settings().brokers;
    let spans = disk.file("spans.json");
    let to = format!("zipkin={}", spans.display());
    let cluster = ["--brokers", brokers.as_str()];
    let spool = disk.file("spool").display().to_string();
    let guests = disk.file("guests");
    std::fs::create_dir(&guests).unwrap();
    let guests = guests.display().to_string();
    let agent = [&cluster[..], &["--device", disk.name(), "--spool", &spool, "--guests", &guests]].concat();
    let agent = Service::start(&disk, "blkkin-agent", &agent, "tracing; events go to");
    let aggregator = Service::start(&disk, "blkkin-aggregator", &cluster, "aggregating; events from");
    let exporter = [&cluster[..], &["--to", &to]].concat();
    let exporter = Service::start(&disk, "blkkin-exporter", &exporter, "exporting");
    let services = [&agent, &aggregator, &exporter];
    let addresses = services.map(|service| (service.job, service.address()));
    let jobs: Vec<_> = addresses.iter().map(|(job, address)| (*job, address.as_str())).collect();
    let rules = Path::new(CONFIGS).join("prometheus-alerts.yml");
    let prometheus = or_skip!(Prometheus::start(&jobs, &rules));
    // A rate needs a first sample.
    let up = eventually(|| prometheus.query("up == 1").unwrap().len() == services.len());
    assert!(up, "{:#?}", prometheus.request("targets", &[]));

    load(&disk);
    // A call, a bio and a request per write, except those whose completion the kernel did not show:
    // the agent counts them.
    let missed =
        || agent.value_where("blkkin_records_incomplete_total", |labels| labels["reason"] == "end missed");
    let wanted = || 3.0 * (f64::from(REQUESTS) - missed());
    let acknowledged = || exporter.value("blkkin_exporter_spans_acknowledged_total");
    let log = || services.map(|service| service.process.output()).join("\n");
    let done = eventually(|| acknowledged() >= wanted());
    assert!(done, "{} of {}\n{}", acknowledged(), wanted(), log());
    assert!(missed() <= f64::from(REQUESTS / 10), "{} ends missed", missed());
    for (service, lag, partitions) in [
        (&aggregator, "blkkin_aggregator_lag_records", "blkkin_aggregator_partitions"),
        (&exporter, "blkkin_exporter_lag_records", "blkkin_exporter_partitions"),
    ] {
        let stages = if service.job == "blkkin-aggregator" { 3.0 } else { 1.0 };
        let done = || service.value(partitions) == stages * 12.0 && service.value(lag) == 0.0;
        assert!(eventually(done), "{}", get(&service.address(), "/metrics"));
    }
    assert_equal(&prometheus, &services);

    let healthy = |data: Value| {
        let rules = data["groups"][0]["rules"].as_array().unwrap().clone();
        rules.len() == ALERTS && rules.iter().all(|rule| rule["health"] == "ok")
    };
    assert!(
        eventually(|| healthy(prometheus.request("rules", &[]).unwrap())),
        "{:?}",
        prometheus.request("rules", &[])
    );
    assert_named(&services, &prometheus);
    for service in services {
        let plain = get_as(&service.address(), "/metrics", "text/plain;version=0.0.4").unwrap();
        promtool(&["check", "metrics"], &plain);
    }

    let exemplars = exemplars(&prometheus);
    agent.finish();
    aggregator.finish();
    exporter.finish();
    let spans: Vec<Value> = serde_json::from_slice(&fs::read(&spans).unwrap()).unwrap();
    let traces: BTreeSet<String> =
        spans.iter().map(|span| span["traceId"].as_str().unwrap().to_owned()).collect();
    println!("{} traces, {} of them for examples", traces.len(), exemplars.len());
    assert!(!exemplars.is_empty() && exemplars.is_subset(&traces), "{exemplars:?}");
}

/// With bad series each alert fires, and with good series none does.
#[test]
fn each_alert_fires_on_bad_series_and_none_on_good_ones() {
    needs!();
    or_skip!(program("promtool"));
    let rules = fs::canonicalize(format!("{CONFIGS}/prometheus-alerts.yml")).unwrap();
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    let text = fs::read_to_string(&rules).unwrap();
    let alerts: BTreeSet<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    // (series, values of a healthy service, values of an unhealthy one)
    let series = [
        ("up{job='blkkin-agent'}", "1x40", "0x40"),
        ("blkkin_records_dropped_total{kind='call'}", "0x40", "0+1x40"),
        ("blkkin_records_incomplete_total{why='table full'}", "7x40", "0+1x40"),
        ("blkkin_disk_bytes_total{disk='sda',cause='calls'}", "0+1000x40", "0+900x40"),
        ("blkkin_disk_bytes_total{disk='sda',cause='unknown'}", "7x40", "0+100x40"),
        ("blkkin_agent_events_waiting", "9x40", "9x40"),
        ("blkkin_agent_events_delivered_total", "0+5x40", "5x40"),
        ("blkkin_agent_events_failed_total", "3x40", "0+1x40"),
        ("blkkin_aggregator_partitions{stage='join'}", "12x40", "0x40"),
        ("blkkin_aggregator_lag_records{stage='join'}", "500x40", "500+50x40"),
        ("blkkin_exporter_destination_up{destination='d'}", "1x40", "0x40"),
        ("blkkin_exporter_lag_records{destination='d'}", "5x40", "5x40"),
        ("blkkin_exporter_last_acknowledgement_timestamp_seconds{destination='d'}", "0+60x40", "0x40"),
        ("blkkin_exporter_spans_refused_total{destination='d'}", "2x40", "0+1x40"),
        ("blkkin_exporter_fragments_missing_total{destination='d'}", "2x40", "0+1x40"),
        ("blkkin_layer_errors_total{layer='request',node='n',device='sda'}", "2x40", "0+1x40"),
        ("blkkin_layer_seconds_bucket{layer='request',node='n',device='sda',le='0.1'}", "0+60x40", "0x40"),
        (
            "blkkin_layer_seconds_bucket{layer='request',node='n',device='sda',le='0.25'}",
            "0+60x40",
            "0+60x40",
        ),
        (
            "blkkin_layer_seconds_bucket{layer='request',node='n',device='sda',le='+Inf'}",
            "0+60x40",
            "0+60x40",
        ),
    ];
    let case = |failing: bool, fires: &[&str]| {
        let mut test = "  - interval: 1m\n    input_series:\n".to_owned();
        for (series, healthy, unhealthy) in series {
            let values = if failing { unhealthy } else { healthy };
            test += &format!("      - {{ series: \"{series}\", values: \"{values}\" }}\n");
        }
        let expression = "count by (alertname) (ALERTS{alertstate='firing'})";
        test += &format!("    promql_expr_test:\n      - expr: \"{expression}\"\n        eval_time: 35m\n");
        test += "        exp_samples:\n";
        for name in fires {
            test += &format!("          - {{ labels: \"{{alertname='{name}'}}\", value: 1 }}\n");
        }
        if fires.is_empty() {
            test.replace("        exp_samples:\n", "        exp_samples: []\n")
        } else {
            test
        }
    };
    let all: Vec<_> = alerts.into_iter().collect();
    assert_eq!(all.len(), ALERTS);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tests.yml");
    let head = format!("rule_files: [\"{}\"]\nevaluation_interval: 1m\ntests:\n", rules.display());
    fs::write(&file, head + &case(true, &all) + &case(false, &[])).unwrap();
    promtool(&["test", "rules", file.to_str().unwrap()], "");
}
