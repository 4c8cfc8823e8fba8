//! Test support: a running server, third-party clients, and a client that sends arbitrary bytes.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

pub(crate) mod client;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Options of both backends. Every test runs with each of them.
pub(crate) const MODES: [&[&str]; 2] = [&["--threads", "4"], &["--rings", "2"]];

/// Server process with its own file.
pub(crate) struct RunningServer {
    pub(crate) folder: TempDir,
    pub(crate) file: PathBuf,
    pub(crate) uris: Vec<String>,
    process: Child,
    /// Kept open, so that the server can write to it.
    _stdout: BufReader<ChildStdout>,
}

impl RunningServer {
    /// Starts a server of a new sparse file of `size` bytes.
    pub(crate) fn start(mode: &[&str], size: u64, options: &[&str]) -> Self {
        Self::start_under(&[], mode, size, options)
    }

    /// Starts it as a child of another program, such as strace.
    pub(crate) fn start_under(wrapper: &[&str], mode: &[&str], size: u64, options: &[&str]) -> Self {
        let own = Path::new(env!("CARGO_BIN_EXE_blkkin-nbd"));
        let Some((program, arguments)) = wrapper.split_first() else {
            return Self::start_as(Command::new(own), mode, size, options);
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(own);
        Self::start_as(command, mode, size, options)
    }

    /// Starts a server of an existing file.
    pub(crate) fn serve(file: &Path, mode: &[&str]) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_blkkin-nbd"));
        Self::spawn(command, tempfile::tempdir().unwrap(), file.to_owned(), mode, &[])
    }

    /// Starts it by a command, which may run as another user.
    pub(crate) fn start_as(command: Command, mode: &[&str], size: u64, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        File::create(&file).unwrap().set_len(size).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        Self::spawn(command, folder, file, mode, options)
    }

    fn spawn(mut command: Command, folder: TempDir, file: PathBuf, mode: &[&str], options: &[&str]) -> Self {
        let socket = folder.path().join("socket");
        let mut process = command
            .arg(&file)
            .arg("--unix")
            .arg(&socket)
            .args(["--tcp", "127.0.0.1:0"])
            .args(mode)
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut uri = || {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            line.trim().to_owned()
        };
        let uris = vec![uri(), uri()];
        assert!(uris[1].starts_with("nbd://127.0.0.1:"), "{uris:?}");
        Self { folder, file, uris, process, _stdout: stdout }
    }

    /// Returns the URI of the Unix socket.
    pub(crate) fn uri(&self) -> &str {
        &self.uris[0]
    }

    pub(crate) fn tcp(&self) -> &str {
        &self.uris[1]
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the number in a line of its /proc/PID/status.
    pub(crate) fn status(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    pub(crate) fn terminate(&self) {
        capture(Command::new("kill").arg(self.pid().to_string()));
    }

    /// Stops it by SIGTERM, as a service manager does. Panics if it fails.
    pub(crate) fn stop(mut self) {
        self.terminate();
        assert!(self.process.wait().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> bool {
        self.process.wait().unwrap().success()
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a command and returns its standard output. Panics if it fails.
pub(crate) fn capture(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// Runs fio. Returns the numbers of reads, writes and syncs.
pub(crate) fn fio(options: &[&str]) -> [u64; 3] {
    let common = ["--name=x", "--ioengine=nbd", "--thread", "--group_reporting", "--output-format=json"];
    let output = capture(Command::new("fio").args(common).args(options));
    let json = &output[output.find('{').unwrap()..];
    let report: Value = serde_json::from_str(json).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0);
    let number = |of: &str, key: &str| job[of][key].as_u64().unwrap_or(0);
    [number("read", "total_ios"), number("write", "total_ios"), number("sync", "total_ios")]
}

/// Returns whether all programs are installed, and prints the missing ones.
pub(crate) fn are_installed(programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap();
    let is_installed =
        |program: &&&str| path.split(':').any(|folder| Path::new(folder).join(program).is_file());
    let missing: Vec<_> = programs.iter().filter(|program| !is_installed(program)).collect();
    if !missing.is_empty() {
        println!("skipped: {missing:?} not installed");
    }
    missing.is_empty()
}

/// Returns bytes that depend on their offset.
pub(crate) fn pattern(from: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[(at % 8) as usize];
    (from..from + length as u64).map(word).collect()
}

pub(crate) fn fill(file: &Path, from: u64, length: usize) {
    File::options().write(true).open(file).unwrap().write_all_at(&pattern(from, length), from).unwrap();
}

/// Waits until a condition of another process is true. Panics after 30 s.
pub(crate) fn eventually(expected: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < end, "{expected}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
