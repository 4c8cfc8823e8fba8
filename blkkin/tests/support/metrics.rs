//! What a service answers where it is asked for metrics and health.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Where it is asked, by what it has said.
pub(crate) fn address(said: &str) -> &str {
    let found = said.lines().find_map(|line| line.split("metrics at http://").nth(1)?.split('/').next());
    found.unwrap_or_else(|| panic!("{said}"))
}

/// The whole answer, head and body.
pub(crate) fn get(address: &str, path: &str) -> String {
    get_with(address, path, "")
}

/// The same, with lines of the question's head. In HTTP 1.0 the answer is in one piece.
pub(crate) fn get_with(address: &str, path: &str, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{head}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A family's value, with these labels.
pub(crate) fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {metrics}")).parse().unwrap()
}

/// All series: labels, the name among them, and values.
pub(crate) fn series(metrics: &str) -> BTreeMap<BTreeMap<String, String>, f64> {
    let body = metrics.split_once("\r\n\r\n").map_or(metrics, |(_, body)| body);
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            // What stands behind is a trace to look at.
            let line = line.split_once(" # {").map_or(line, |(line, _)| line);
            let (series, value) = line.rsplit_once(' ').unwrap();
            (labels(series), value.parse().unwrap())
        })
        .collect()
}

fn labels(series: &str) -> BTreeMap<String, String> {
    let (name, mut rest) = series.split_once('{').unwrap_or((series, "}"));
    let mut labels = BTreeMap::from([("__name__".to_owned(), name.to_owned())]);
    while let Some((label, value)) = rest.split_once("=\"") {
        let end = value.find('"').unwrap();
        assert!(!value[..end].contains('\\'), "no test makes such names: {series}");
        labels.insert(label.to_owned(), value[..end].to_owned());
        rest = value[end + 1..].trim_start_matches(',');
    }
    labels
}

/// The names of all families.
pub(crate) fn families(metrics: &str) -> BTreeSet<String> {
    let names = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Those that docs/operating.md describes.
pub(crate) fn described() -> BTreeSet<String> {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| `blkkin_")?.split('`').next());
    rows.map(|name| format!("blkkin_{}", name.split('{').next().unwrap().trim_end_matches("_total")))
        .collect()
}

/// What an agent that listens to daemons says besides.
pub(crate) fn is_of_daemons(family: &str) -> bool {
    family.starts_with("blkkin_daemon_")
}

/// One that listens at probes.
pub(crate) fn is_of_probes(family: &str) -> bool {
    family.starts_with("blkkin_usdt_")
}

/// And one that sees NBD clients.
pub(crate) fn is_of_nbd(family: &str) -> bool {
    family.starts_with("blkkin_nbd_")
}
