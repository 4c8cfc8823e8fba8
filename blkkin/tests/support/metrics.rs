//! A client of a service's HTTP endpoints for metrics and health.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Returns the address of the endpoint from the service's output.
pub(crate) fn address(output: &str) -> &str {
    let found = output.lines().find_map(|line| line.split("metrics at http://").nth(1)?.split('/').next());
    found.unwrap_or_else(|| panic!("{output}"))
}

/// Returns the whole response, head and body.
pub(crate) fn get(address: &str, path: &str) -> String {
    get_with(address, path, "")
}

/// Returns the response to a request with further header lines. HTTP 1.0 sends it in one piece.
pub(crate) fn get_with(address: &str, path: &str, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{head}\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// Returns the value of a series, given by name and labels.
pub(crate) fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {metrics}")).parse().unwrap()
}

/// Returns the values of all series by their labels, which include the name.
pub(crate) fn series(metrics: &str) -> BTreeMap<BTreeMap<String, String>, f64> {
    let body = metrics.split_once("\r\n\r\n").map_or(metrics, |(_, body)| body);
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            // An exemplar may follow the value.
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
        assert!(!value[..end].contains('\\'), "no test has label values with escapes: {series}");
        labels.insert(label.to_owned(), value[..end].to_owned());
        rest = value[end + 1..].trim_start_matches(',');
    }
    labels
}

/// Returns the names of all families.
pub(crate) fn families(metrics: &str) -> BTreeSet<String> {
    let names = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Returns the families that docs/operating.md describes.
pub(crate) fn documented_families() -> BTreeSet<String> {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| `blkkin_")?.split('`').next());
    rows.map(|name| format!("blkkin_{}", name.split('{').next().unwrap().trim_end_matches("_total")))
        .collect()
}

/// Returns whether only an agent with LTTng sources has the family.
pub(crate) fn is_lttng_family(family: &str) -> bool {
    family.starts_with("blkkin_daemon_")
}

/// Returns whether only an agent with USDT mappings has the family.
pub(crate) fn is_usdt_family(family: &str) -> bool {
    family.starts_with("blkkin_usdt_")
}

/// Returns whether only an agent with `--nbd` has the family.
pub(crate) fn is_nbd_family(family: &str) -> bool {
    family.starts_with("blkkin_nbd_")
}
