//! PostgreSQL: a separate database cluster in a folder, with a traced server and pgbench as client.
//!
//! The tool starts the server. It must not run as root, so `setpriv` drops root after the tool.
//! pgbench is not traced: the server is measured. The server listens only on a Unix socket in the
//! same folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::workload::{LoadResult, Workload};
use crate::disk::DiskTarget;
use crate::frame::rounds::quantile;
use crate::process;

/// User of the server, which exists on every system and owns nothing.
const USER: &str = "nobody";
/// pgbench's scale, in 100,000 rows: 75 MB, more than ext4's journal and less than the disk.
const SCALE: &str = "5";
const CLIENTS: &str = "2";
/// Time limit for the server to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Settings for a small disk; all others are PostgreSQL's defaults.
const SETTINGS: [&str; 3] = ["max_wal_size=128MB", "min_wal_size=32MB", "listen_addresses="];

pub(crate) struct Postgres {
    place: DiskTarget,
    seconds: f64,
    ready: bool,
}

impl Postgres {
    /// Prepares the workload; the cluster is made on first use.
    pub(crate) fn new(place: DiskTarget, seconds: f64) -> Postgres {
        Postgres { place, seconds, ready: false }
    }

    fn data(&self) -> PathBuf {
        self.place.target.join("data")
    }

    fn socket(&self) -> String {
        self.place.target.display().to_string()
    }

    /// Returns the prefix of pgbench's transaction logs: in memory, so that they do not disturb a
    /// disk.
    fn log_prefix(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/blkkin-bench.{}.pgbench", std::process::id()))
    }

    fn initialize(&mut self) -> Result<()> {
        fs::create_dir_all(&self.place.target)?;
        let folder = self.place.target.display().to_string();
        process::run(Command::new("chown").args([USER, &folder]))?;
        let data = self.data().display().to_string();
        process::run(as_user("initdb")?.args(["-D", &data, "--auth=trust", "--no-sync", "-U", USER]))?;
        let mut server = as_user("postgres")?;
        server.args(self.server_options()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = server.spawn().context("cannot start postgres")?;
        let filled = self.wait_until_up().and_then(|()| {
            process::run(
                as_user("pgbench")?.args(["-h", &folder, "-U", USER, "-i", "-q", "-s", SCALE, "postgres"]),
            )
        });
        let stopped = self.stop();
        server.wait()?;
        filled.and(stopped)?;
        self.ready = true;
        Ok(())
    }

    fn server_options(&self) -> Vec<String> {
        let mut arguments =
            vec!["-D".to_owned(), self.data().display().to_string(), "-k".to_owned(), self.socket()];
        arguments.extend(SETTINGS.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]));
        arguments
    }

    fn wait_until_up(&self) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < START_TIMEOUT {
            if process::run(as_user("pg_isready")?.args(["-q", "-h", &self.socket()])).is_ok() {
                return Ok(());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        bail!("PostgreSQL did not come up within {} s", START_TIMEOUT.as_secs())
    }

    fn stop(&self) -> Result<()> {
        let data = self.data().display().to_string();
        process::run(as_user("pg_ctl")?.args(["stop", "-m", "fast", "-D", &data])).map(drop)
    }

    /// Reads and removes the logs of pgbench's threads.
    fn take_log(&self) -> Result<String> {
        let prefix = self.log_prefix();
        let (folder, name) =
            (Path::new("/dev/shm"), prefix.file_name().unwrap_or_default().to_string_lossy());
        let mut log = String::new();
        for entry in fs::read_dir(folder)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&*name) {
                log += &fs::read_to_string(entry.path())?;
                fs::remove_file(entry.path())?;
            }
        }
        Ok(log)
    }
}

impl Workload for Postgres {
    fn name(&self) -> String {
        format!("PostgreSQL, pgbench with {CLIENTS} clients, {}", self.place.name)
    }

    fn short(&self) -> String {
        "pgbench".to_owned()
    }

    fn unit(&self) -> &'static str {
        "transactions/s"
    }

    fn place(&self) -> &DiskTarget {
        &self.place
    }

    fn comm(&self) -> &'static str {
        "postgres"
    }

    fn prepare(&mut self) -> Result<()> {
        if !self.ready {
            self.initialize().context("no PostgreSQL cluster")?;
        }
        self.take_log().map(drop)
    }

    fn command(&self, _output: &Path) -> Vec<String> {
        // If it is missing, the tool reports it.
        let postgres = program("postgres").unwrap_or_else(|_| PathBuf::from("postgres"));
        let mut arguments = without_root();
        arguments.push(postgres.display().to_string());
        arguments.extend(self.server_options());
        arguments
    }

    fn drive(&mut self) -> Result<()> {
        let seconds = (self.seconds.ceil() as u64).to_string();
        let prefix = format!("--log-prefix={}", self.log_prefix().display());
        let drive_result = self.wait_until_up().and_then(|()| {
            let mut pgbench = as_user("pgbench")?;
            pgbench.args(["-h", &self.socket(), "-U", USER, "-n", "-c", CLIENTS, "-T", &seconds, "-l"]);
            process::run(pgbench.args([&prefix, "postgres"]))
        });
        drive_result.and(self.stop())
    }

    fn result(&mut self, _output: &Path) -> Result<LoadResult> {
        done(&self.take_log()?)
    }
}

/// Parses lines of `client transaction µs script seconds µs`: the duration and the end of each
/// transaction.
fn done(log: &str) -> Result<LoadResult> {
    let mut times = Vec::new();
    let (mut first, mut last) = (f64::INFINITY, f64::NEG_INFINITY);
    for line in log.lines() {
        let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [_, _, time, _, seconds, micros, ..] = numbers[..] else {
            bail!("pgbench logged: {line}");
        };
        let end = seconds + micros / 1e6;
        first = first.min(end - time / 1e6);
        last = last.max(end);
        times.push(time);
    }
    if times.is_empty() {
        bail!("pgbench finished no transaction");
    }
    Ok(LoadResult { ops: times.len() as f64 / (last - first), p99: quantile(&mut times, 0.99) })
}

/// Finds a program of the newest version, which Debian keeps outside the PATH.
fn program(name: &str) -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.is_file()).collect();
    found.push(PathBuf::from("/usr/bin").join(name));
    found.sort_unstable();
    found.into_iter().rev().find(|path| path.is_file()).with_context(|| format!("{name} is not installed"))
}

fn without_root() -> Vec<String> {
    let arguments = ["setpriv", &format!("--reuid={USER}"), "--regid=nogroup", "--clear-groups", "--"];
    arguments.map(str::to_owned).into()
}

fn as_user(name: &str) -> Result<Command> {
    let mut arguments = without_root().into_iter();
    let mut command = Command::new(arguments.next().unwrap_or_default());
    command.args(arguments).arg(program(name)?);
    // The programs complain about a working directory that the user may not enter.
    command.current_dir("/");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_rate_uses_the_time_of_the_log() {
        let log = "0 1 500000 0 100 500000\n1 1 1000000 0 101 0\n0 2 500000 0 101 0\n";
        let done = done(log).unwrap();
        assert_eq!((done.ops, done.p99), (3.0, 1_000_000.0));
    }

    #[test]
    fn empty_log_is_an_error() {
        assert!(done("").is_err() && done("0 1 x\n").is_err());
    }
}
