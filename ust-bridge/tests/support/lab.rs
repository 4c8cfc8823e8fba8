//! LTTng daemons of one test, with their own ports and home.
//!
//! For root they also have their own `/run/lttng`, in a mount namespace that ends with the test.
//! Other daemons are neither seen nor changed.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use blkkin_ust_bridge::session::lttng_command::LttngCommand;
use blkkin_ust_bridge::session::supervisor::Relay;

use super::programs::have;

/// Daemons and their namespace.
pub(crate) struct Lab {
    /// Process that keeps the namespace; ended last.
    _namespace: Option<Child>,
    prefix: Vec<String>,
    pub(crate) home: tempfile::TempDir,
    daemons: Vec<Child>,
    control: u16,
    data: u16,
    pub(crate) live: u16,
}

impl Lab {
    /// Starts the daemons; `None` if a program is missing.
    pub(crate) fn start() -> Option<Self> {
        let mut lab = Self::empty()?;
        let agent = free_port();
        lab.daemon("lttng-sessiond", &["--no-kernel", &format!("--agent-tcp-port={agent}")]);
        lab.relay();
        until("the session daemon answers", || {
            lab.command("lttng")
                .args(["--no-sessiond", "list"])
                .output()
                .is_ok_and(|out| out.status.success())
        });
        Some(lab)
    }

    /// Creates the namespace without daemons.
    pub(crate) fn empty() -> Option<Self> {
        // The last one stands for LTTng's headers, which are in another folder on each
        // distribution.
        if !have(&["lttng", "lttng-sessiond", "lttng-relayd", "babeltrace2", "gcc", "lttng-gen-tp"]) {
            return None;
        }
        let (namespace, prefix) = namespace()?;
        let (control, data, live) = (free_port(), free_port(), free_port());
        let home = tempfile::tempdir().expect("a folder");
        Some(Self { _namespace: namespace, prefix, home, daemons: Vec::new(), control, data, live })
    }

    /// Returns the relay's ports.
    pub(crate) fn relay_ports(&self) -> Relay {
        let (control, data, live) = (self.control, self.data, self.live);
        Relay { host: "127.0.0.1".to_owned(), control, data, live, network: None }
    }

    /// Stops the relay.
    pub(crate) fn stop_relay(&mut self) {
        end(self.daemons.pop().expect("the relay was started last"));
    }

    /// Starts the relay, always on the same ports.
    pub(crate) fn relay(&mut self) {
        let ports = [("control", self.control), ("data", self.data), ("live", self.live)];
        let ports = ports.map(|(name, port)| format!("--{name}-port=tcp://127.0.0.1:{port}"));
        let output = format!("--output={}", self.traces().display());
        self.daemon("lttng-relayd", &[&ports[0], &ports[1], &ports[2], &output]);
        until("the relay listens", || TcpStream::connect(("127.0.0.1", self.live)).is_ok());
    }

    fn daemon(&mut self, program: &str, args: &[&str]) {
        let log = std::fs::File::create(self.home.path().join(format!("{program}.log"))).expect("a log");
        let mut command = self.command("setpriv");
        command.args(["--pdeathsig", "TERM", program]).args(args);
        let errors = log.try_clone().expect("a log");
        self.daemons.push(
            command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("the program starts"),
        );
    }

    /// Returns a command in the daemons' namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let words: Vec<&str> = self.prefix.iter().map(String::as_str).chain([program]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("LTTNG_HOME", self.home.path()).env("HOME", self.home.path());
        command
    }

    /// Returns the configuration for commands in the daemons' namespace.
    pub(crate) fn tool(&self) -> LttngCommand {
        let home = self.home.path().display().to_string();
        let variables = vec![("LTTNG_HOME".to_owned(), home.clone()), ("HOME".to_owned(), home)];
        LttngCommand { prefix: self.prefix.clone(), variables }
    }

    /// Runs `lttng`, which must succeed.
    pub(crate) fn lttng(&self, args: &str) -> String {
        let out = self.command("lttng").arg("--no-sessiond").args(args.split_whitespace()).output();
        let out = out.expect("lttng runs");
        let output =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "lttng {args}: {output}");
        output
    }

    /// Creates a live session with all events of the sample program.
    pub(crate) fn live_session(&self, name: &str, period_us: u64, channel: &str) {
        let (control, data) = (self.control, self.data);
        self.lttng(&format!("create {name} --live={period_us} --ctrl-url=tcp://127.0.0.1:{control} --data-url=tcp://127.0.0.1:{data}"));
        self.lttng(&format!("enable-channel -s {name} -u c {channel}"));
        self.lttng(&format!("enable-event -s {name} -u sample:* -c c"));
        self.lttng(&format!("add-context -s {name} -u -t vpid -t vtid -t procname"));
        self.lttng(&format!("start {name}"));
    }

    /// Returns the address of the relay's live port.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.live)
    }

    /// Returns the folder of the relay's traces.
    pub(crate) fn traces(&self) -> PathBuf {
        self.home.path().join("traces")
    }

    /// Starts the sample program, which then waits for [`Sample::go`].
    pub(crate) fn sample(&self, args: &[&str]) -> Sample {
        self.sample_on("0-1023", args)
    }

    /// Starts the sample program with a clock that is an hour ahead.
    pub(crate) fn sample_ahead(&self, args: &[&str]) -> Sample {
        self.start_sample("0-1023", args, &[("LTTNG_UST_CLOCK_PLUGIN", future_clock())])
    }

    /// Starts the sample program on these CPUs.
    pub(crate) fn sample_on(&self, processors: &str, args: &[&str]) -> Sample {
        self.start_sample(processors, args, &[])
    }

    fn start_sample(&self, processors: &str, args: &[&str], variables: &[(&str, &Path)]) -> Sample {
        let mut command = self.command("setpriv");
        command.args(["--pdeathsig", "KILL", "taskset", "--cpu-list", processors]).arg(program()).args(args);
        command.env("LTTNG_UST_ALLOW_BLOCKING", "1").envs(variables.iter().copied());
        // With -1 the library's constructor returns after the registration with the daemon.
        command.env("LTTNG_UST_REGISTER_TIMEOUT", "-1");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut sample = Sample { child, stdin, stdout };
        sample.expect_line("ready");
        sample
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.daemons.drain(..).rev().for_each(end);
    }
}

/// Program with trace points.
pub(crate) struct Sample {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Sample {
    fn expect_line(&mut self, word: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the program writes a line");
        assert_eq!(line.trim(), word);
    }

    /// Emits the events and waits until they are emitted.
    pub(crate) fn go(&mut self) {
        self.begin();
        self.done();
    }

    /// Waits until the events are emitted.
    pub(crate) fn done(&mut self) {
        self.expect_line("done");
    }

    /// Starts to emit the events.
    pub(crate) fn begin(&mut self) {
        writeln!(self.stdin.as_mut().expect("the program reads its input"), "go")
            .expect("the program reads its input");
    }

    /// Emits the events and waits until the program is killed.
    pub(crate) fn expect_killed(mut self) {
        self.begin();
        assert!(!self.child.wait().expect("the process was started").success());
    }

    /// Ends the program normally.
    pub(crate) fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().expect("the process was started").success());
    }
}

/// Creates a mount namespace with an own `/run/lttng` for root. For other users LTTNG_HOME is
/// enough.
fn namespace() -> Option<(Option<Child>, Vec<String>)> {
    // SAFETY: the call only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return Some((None, vec!["env".to_owned()]));
    }
    let script = "mkdir -p /run/lttng && mount -t tmpfs tmpfs /run/lttng && echo ready && exec cat";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    let mut namespace = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let mut line = String::new();
    BufReader::new(namespace.stdout.take()?).read_line(&mut line).ok()?;
    if line.trim() != "ready" {
        eprintln!("skipped: no mount name space of its own here");
        return None;
    }
    let prefix = ["nsenter".to_owned(), format!("--mount=/proc/{}/ns/mnt", namespace.id()), "--".to_owned()];
    Some((Some(namespace), prefix.to_vec()))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|any| any.local_addr()).expect("a port").port()
}

/// Sends SIGTERM and waits for the process.
pub(crate) fn end(mut child: Child) {
    // SAFETY: the child was not waited for yet, so its process id is still valid.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let _ = child.wait();
}

/// Waits until the condition is true.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the sample program, which is compiled once.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &PROGRAM.get_or_init(|| compile("sample.c", &["-I.", "-llttng-ust", "-ldl"])).1
}

/// Returns the clock plugin, which is compiled once.
fn future_clock() -> &'static Path {
    static PLUGIN: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &PLUGIN.get_or_init(|| compile("future_clock.c", &["-shared", "-fPIC", "-llttng-ust"])).1
}

fn compile(source: &str, args: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("compiled");
    let mut command = Command::new("gcc");
    command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&path).arg(source).args(args);
    // The same folder for the benchmark, which is in another crate.
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../ust-bridge/tests/c"));
    assert!(command.status().expect("gcc runs").success());
    (folder, path)
}
