//! A server that runs, clients that are not ours, and one of our own that may say anything.

#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

pub(crate) mod client;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Both ways of serving: every test is for each of them.
pub(crate) const MODES: [&[&str]; 2] = [&["--threads", "4"], &["--rings", "2"]];

/// The program as it is built, serving a file of its own.
pub(crate) struct Running {
    pub(crate) folder: TempDir,
    pub(crate) file: PathBuf,
    pub(crate) uris: Vec<String>,
    process: Child,
    /// Held, so that it is open.
    _stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Serves a new file of so many bytes, all zeroes and none allocated.
    pub(crate) fn start(mode: &[&str], size: u64, options: &[&str]) -> Self {
        Self::start_under(&[], mode, size, options)
    }

    /// Below another program.
    pub(crate) fn start_under(above: &[&str], mode: &[&str], size: u64, options: &[&str]) -> Self {
        let own = Path::new(env!("CARGO_BIN_EXE_blkkin-nbd"));
        let Some((program, arguments)) = above.split_first() else {
            return Self::start_as(Command::new(own), mode, size, options);
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(own);
        Self::start_as(command, mode, size, options)
    }

    /// What is there already.
    pub(crate) fn serve(file: &Path, mode: &[&str]) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_blkkin-nbd"));
        Self::begin(command, tempfile::tempdir().unwrap(), file.to_owned(), mode, &[])
    }

    /// By a command that may be another user's.
    pub(crate) fn start_as(command: Command, mode: &[&str], size: u64, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        File::create(&file).unwrap().set_len(size).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        Self::begin(command, folder, file, mode, options)
    }

    fn begin(mut command: Command, folder: TempDir, file: PathBuf, mode: &[&str], options: &[&str]) -> Self {
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

    /// By the Unix socket.
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

    /// What /proc says of it, in this line.
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

    /// Ends it as its manager would, and is well only if it ends well.
    pub(crate) fn stop(mut self) {
        self.terminate();
        assert!(self.process.wait().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> bool {
        self.process.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs it to its end, well; what it said.
pub(crate) fn capture(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{errors}", output.status);
    said
}

/// Of a run of fio: reads, writes, syncs.
pub(crate) fn fio(options: &[&str]) -> [u64; 3] {
    let common = ["--name=x", "--ioengine=nbd", "--thread", "--group_reporting", "--output-format=json"];
    let said = capture(Command::new("fio").args(common).args(options));
    let json = &said[said.find('{').unwrap()..];
    let told: Value = serde_json::from_str(json).unwrap();
    let job = &told["jobs"][0];
    assert_eq!(job["error"], 0);
    let number = |of: &str, key: &str| job[of][key].as_u64().unwrap_or(0);
    [number("read", "total_ios"), number("write", "total_ios"), number("sync", "total_ios")]
}

/// Whether these programs are here; if not, a test says so and ends.
pub(crate) fn are_here(programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap();
    let is_here = |program: &&&str| path.split(':').any(|folder| Path::new(folder).join(program).is_file());
    let missing: Vec<_> = programs.iter().filter(|program| !is_here(program)).collect();
    if !missing.is_empty() {
        println!("skipped: no {missing:?} here");
    }
    missing.is_empty()
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(from: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[(at % 8) as usize];
    (from..from + length as u64).map(word).collect()
}

pub(crate) fn fill(file: &Path, from: u64, length: usize) {
    File::options().write(true).open(file).unwrap().write_all_at(&pattern(from, length), from).unwrap();
}

/// Soon. Whoever waits for another process cannot know when; the limit is for what never comes.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
