//! A real Prometheus server for the time of a test, and a small client of its HTTP API.
//!
//! Its programs are at the path that `cargo xtask test` passes, or where `cargo xtask setup
//! --tests` puts them, or installed. Nothing is downloaded here.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::broker::child::{KillOnDrop, end_with_test};
use crate::support::live::eventually;
use crate::support::metrics::get_as;

/// Values of series by their labels, which include the name.
pub(crate) type Series = BTreeMap<BTreeMap<String, String>, f64>;

/// The server; it ends with the test process in every case.
pub(crate) struct Prometheus {
    _process: KillOnDrop,
    address: String,
    folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes each of these addresses as a job, every second, and evaluates
    /// these rules; or returns why it cannot.
    pub(crate) fn start(jobs: &[(&str, &str)], rules: &Path) -> Result<Prometheus, String> {
        let program = program("prometheus")?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| format!("no free port: {error}"))?.to_string();
        let config = folder.path().join("prometheus.yml");
        fs::write(&config, configuration(jobs, rules)).map_err(|error| error.to_string())?;
        let log = fs::File::create(folder.path().join("log")).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--enable-feature=exemplar-storage")
            .stdout(Stdio::null())
            .stderr(log);
        let process = end_with_test(&mut command).spawn().map_err(|error| format!("prometheus: {error}"))?;
        let server = Prometheus { _process: KillOnDrop(process), address, folder };
        let ready = || get_as(&server.address, "/-/ready", "*/*").is_ok();
        assert!(eventually(ready), "no Prometheus:\n{}", server.log());
        Ok(server)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns the data of an API response whose status is success.
    pub(crate) fn request(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let request = ureq::get(format!("http://{}/api/v1/{path}", self.address));
        let request = request.query_pairs(parameters.iter().copied()).config().proxy(None);
        // An error's status and reason are in the response too.
        let response = request.http_status_as_error(false).build().call();
        let mut response = response.map_err(|error| error.to_string())?;
        let mut response: Value = serde_json::from_reader(response.body_mut().as_reader())
            .map_err(|error| format!("{error}: {response:?}"))?;
        match response["status"] == "success" {
            true => Ok(response["data"].take()),
            false => Err(response.to_string()),
        }
    }

    /// Returns the series that an expression evaluates to now.
    pub(crate) fn query(&self, expression: &str) -> Result<Series, String> {
        let data = self.request("query", &[("query", expression)])?;
        let mut series = Series::new();
        for found in data["result"].as_array().unwrap() {
            let labels = serde_json::from_value(found["metric"].clone()).unwrap();
            series.insert(labels, found["value"][1].as_str().unwrap().parse().unwrap());
        }
        Ok(series)
    }
}

fn configuration(jobs: &[(&str, &str)], rules: &Path) -> String {
    let mut text = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\nscrape_configs:\n",
        rules.display()
    );
    for (job, address) in jobs {
        text += &format!("  - job_name: {job}\n    static_configs: [{{ targets: [\"{address}\"] }}]\n");
    }
    text
}

/// Returns the path of one of Prometheus' programs, or why there is none.
pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    let configured = std::env::var_os("BLKKIN_PROMETHEUS").map(PathBuf::from);
    let toolchain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain/prometheus");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = configured.into_iter().chain([toolchain]).chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join(name)).find(|program| program.is_file());
    found.ok_or_else(|| format!("no {name}: cargo xtask setup --tests fetches it"))
}
