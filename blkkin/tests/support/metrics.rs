//! A client of a service's HTTP endpoints for metrics and health.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time limit of a request; a response takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the address of the endpoint from the service's output.
pub(crate) fn address(output: &str) -> &str {
    let found = output.lines().find_map(|line| line.split("metrics at http://").nth(1)?.split('/').next());
    found.unwrap_or_else(|| panic!("{output}"))
}

/// Returns the body of the response.
pub(crate) fn get(address: &str, path: &str) -> String {
    get_as(address, path, "*/*").unwrap_or_else(|error| panic!("{address}{path}: {error}"))
}

/// Returns the body of the response in this content type, or an error if its status is one.
pub(crate) fn get_as(address: &str, path: &str, content_type: &str) -> Result<String, ureq::Error> {
    let request = ureq::get(format!("http://{address}{path}")).header("accept", content_type);
    let mut response = request.config().proxy(None).timeout_global(Some(TIMEOUT)).build().call()?;
    response.body_mut().with_config().limit(u64::MAX).read_to_string()
}

/// Returns the value of a series, given by name and labels.
pub(crate) fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {metrics}")).parse().unwrap()
}

/// Returns the values of all series by their labels, which include the name.
pub(crate) fn series(metrics: &str) -> BTreeMap<BTreeMap<String, String>, f64> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
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

/// Returns whether only an agent with `--flight-recorder` has the family.
pub(crate) fn is_flight_family(family: &str) -> bool {
    family.starts_with("blkkin_flight_")
}

/// Returns whether only an agent with `--budget` has the family.
pub(crate) fn is_budget_family(family: &str) -> bool {
    family.starts_with("blkkin_budget_")
}

/// Returns whether only an agent with `--ctl` has the family.
pub(crate) fn is_ctl_family(family: &str) -> bool {
    family.starts_with("blkkin_ctl_")
}

/// Returns whether only an agent with `--totals` has the family.
pub(crate) fn is_totals_family(family: &str) -> bool {
    family.starts_with("blkkin_request")
}

/// Returns whether only an agent with a percentile in `--keep` has the family.
pub(crate) fn is_percentile_family(family: &str) -> bool {
    family == "blkkin_keep_percentile_seconds"
}

/// Returns whether only an agent with `--nbd` has the family.
pub(crate) fn is_nbd_family(family: &str) -> bool {
    family.starts_with("blkkin_nbd_")
}
