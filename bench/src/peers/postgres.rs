//! PostgreSQL: a cluster of our own in a folder, the server traced, pgbench beside it.
//!
//! The server is what is started under the tool; it does not run as root, so `setpriv` takes root away behind the tool.
//! pgbench is not traced: what is measured is the server. Only a Unix socket in the same folder is listened on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::workload::{Done, Workload};
use crate::disk::Place;
use crate::frame::rounds::quantile;

/// Who the server runs as: nobody has it everywhere, and it owns nothing.
const USER: &str = "nobody";
/// Rows are 100,000 times as many: 75 MB, more than ext4's journal and less than the disk.
const SCALE: &str = "5";
const CLIENTS: &str = "2";
/// A server that accepts nothing after so long does not come up.
const UP_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// For a small disk; all else is PostgreSQL's default.
const SETTINGS: [&str; 3] = ["max_wal_size=128MB", "min_wal_size=32MB", "listen_addresses="];

pub(crate) struct Postgres {
    place: Place,
    seconds: f64,
    ready: bool,
}

impl Postgres {
    /// The cluster is made when it is first needed.
    pub(crate) fn new(place: Place, seconds: f64) -> Postgres {
        Postgres { place, seconds, ready: false }
    }

    fn data(&self) -> PathBuf {
        self.place.target.join("data")
    }

    fn socket(&self) -> String {
        self.place.target.display().to_string()
    }

    /// pgbench's own log of every transaction: in memory, so that it disturbs no disk.
    fn log_prefix(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/blkkin-bench.{}.pgbench", std::process::id()))
    }

    fn initialize(&mut self) -> Result<()> {
        fs::create_dir_all(&self.place.target)?;
        let folder = self.place.target.display().to_string();
        quietly(Command::new("chown").args([USER, &folder]))?;
        let data = self.data().display().to_string();
        quietly(as_user("initdb")?.args(["-D", &data, "--auth=trust", "--no-sync", "-U", USER]))?;
        let mut server = as_user("postgres")?;
        server.args(self.server_options()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = server.spawn().context("cannot start postgres")?;
        let filled = self.wait_until_up().and_then(|()| {
            quietly(
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
        let mut words =
            vec!["-D".to_owned(), self.data().display().to_string(), "-k".to_owned(), self.socket()];
        words.extend(SETTINGS.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]));
        words
    }

    fn wait_until_up(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < UP_WITHIN {
            if quietly(as_user("pg_isready")?.args(["-q", "-h", &self.socket()])).is_ok() {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("PostgreSQL did not come up within {} s", UP_WITHIN.as_secs())
    }

    fn stop(&self) -> Result<()> {
        quietly(as_user("pg_ctl")?.args(["stop", "-m", "fast", "-D", &self.data().display().to_string()]))
    }

    /// What pgbench's threads logged, and their logs' removal.
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

    fn place(&self) -> &Place {
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
        // Without it the tool's own error will say what is missing.
        let postgres = program("postgres").unwrap_or_else(|_| PathBuf::from("postgres"));
        let mut words = without_root();
        words.push(postgres.display().to_string());
        words.extend(self.server_options());
        words
    }

    fn drive(&mut self) -> Result<()> {
        let seconds = (self.seconds.ceil() as u64).to_string();
        let prefix = format!("--log-prefix={}", self.log_prefix().display());
        let driven = self.wait_until_up().and_then(|()| {
            let mut pgbench = as_user("pgbench")?;
            pgbench.args(["-h", &self.socket(), "-U", USER, "-n", "-c", CLIENTS, "-T", &seconds, "-l"]);
            quietly(pgbench.args([&prefix, "postgres"]))
        });
        driven.and(self.stop())
    }

    fn result(&mut self, _output: &Path) -> Result<Done> {
        done(&self.take_log()?)
    }
}

/// Lines of `client transaction µs script seconds µs`: how long each took and when it ended.
fn done(log: &str) -> Result<Done> {
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
    Ok(Done { ops: times.len() as f64 / (last - first), p99: quantile(&mut times, 0.99) })
}

/// Debian keeps them out of the PATH, by version: the newest.
fn program(name: &str) -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.is_file()).collect();
    found.push(PathBuf::from("/usr/bin").join(name));
    found.sort_unstable();
    found.into_iter().rev().find(|path| path.is_file()).with_context(|| format!("{name} is not installed"))
}

fn without_root() -> Vec<String> {
    let words = ["setpriv", &format!("--reuid={USER}"), "--regid=nogroup", "--clear-groups", "--"];
    words.map(str::to_owned).into()
}

fn as_user(name: &str) -> Result<Command> {
    let mut words = without_root().into_iter();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).arg(program(name)?);
    // It complains of a folder that the user may not enter.
    command.current_dir("/");
    Ok(command)
}

fn quietly(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().context("cannot start a program of PostgreSQL")?;
    if !output.status.success() {
        let last: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        bail!("`{}` failed: {}", last.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_a_second_are_over_the_time_in_which_they_ran() {
        let log = "0 1 500000 0 100 500000\n1 1 1000000 0 101 0\n0 2 500000 0 101 0\n";
        let done = done(log).unwrap();
        assert_eq!((done.ops, done.p99), (3.0, 1_000_000.0));
    }

    #[test]
    fn a_server_that_did_nothing_is_an_error() {
        assert!(done("").is_err() && done("0 1 x\n").is_err());
    }
}
