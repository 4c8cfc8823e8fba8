//! LTTng's daemons of a test's own: other ports, another home, and for root another `/run/lttng`, in a mount name space that
//! ends with the test. Nobody else's daemons are seen or touched.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use blkkin_ust_bridge::session::keeper::Relay;
use blkkin_ust_bridge::session::tool::Tool;

use super::have;

/// The daemons, and the room that they are in.
pub(crate) struct Lab {
    /// Ended last: it keeps the name space.
    _room: Option<Child>,
    prefix: Vec<String>,
    pub(crate) home: tempfile::TempDir,
    daemons: Vec<Child>,
    control: u16,
    data: u16,
    pub(crate) live: u16,
}

impl Lab {
    /// The daemons, running; none where a program is missing.
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

    /// The room alone, without daemons.
    pub(crate) fn empty() -> Option<Self> {
        // The last stands for LTTng's headers, which lie elsewhere on each distribution.
        if !have(&["lttng", "lttng-sessiond", "lttng-relayd", "babeltrace2", "gcc", "lttng-gen-tp"]) {
            return None;
        }
        let (room, prefix) = room()?;
        let (control, data, live) = (free_port(), free_port(), free_port());
        let home = tempfile::tempdir().expect("a folder");
        Some(Self { _room: room, prefix, home, daemons: Vec::new(), control, data, live })
    }

    /// Where its relay listens.
    pub(crate) fn relay_ports(&self) -> Relay {
        Relay { host: "127.0.0.1".to_owned(), control: self.control, data: self.data, live: self.live }
    }

    /// Ends the relay.
    pub(crate) fn stop_relay(&mut self) {
        end(self.daemons.pop().expect("the relay is the last"));
    }

    /// Starts the relay, on the same ports each time.
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
        self.daemons
            .push(command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("it starts"));
    }

    /// A command among the daemons.
    pub(crate) fn command(&self, program: &str) -> Command {
        let words: Vec<&str> = self.prefix.iter().map(String::as_str).chain([program]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("LTTNG_HOME", self.home.path()).env("HOME", self.home.path());
        command
    }

    /// How the bridge runs commands among the daemons.
    pub(crate) fn tool(&self) -> Tool {
        let home = self.home.path().display().to_string();
        let variables = vec![("LTTNG_HOME".to_owned(), home.clone()), ("HOME".to_owned(), home)];
        Tool { prefix: self.prefix.clone(), variables }
    }

    /// `lttng …`, which has to succeed.
    pub(crate) fn lttng(&self, args: &str) -> String {
        let out = self.command("lttng").arg("--no-sessiond").args(args.split_whitespace()).output();
        let out = out.expect("lttng runs");
        let said =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "lttng {args}: {said}");
        said
    }

    /// A live session with every event of user space.
    pub(crate) fn live_session(&self, name: &str, period_us: u64, channel: &str) {
        let (control, data) = (self.control, self.data);
        self.lttng(&format!("create {name} --live={period_us} --ctrl-url=tcp://127.0.0.1:{control} --data-url=tcp://127.0.0.1:{data}"));
        self.lttng(&format!("enable-channel -s {name} -u c {channel}"));
        self.lttng(&format!("enable-event -s {name} -u sample:* -c c"));
        self.lttng(&format!("add-context -s {name} -u -t vpid -t vtid -t procname"));
        self.lttng(&format!("start {name}"));
    }

    /// Where the relay's live port is.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.live)
    }

    /// Where the relay writes.
    pub(crate) fn traces(&self) -> PathBuf {
        self.home.path().join("traces")
    }

    /// The test's program with trace points, waiting for its turn.
    pub(crate) fn sample(&self, args: &[&str]) -> Sample {
        self.sample_on("0-1023", args)
    }

    /// The same, on these processors.
    pub(crate) fn sample_on(&self, processors: &str, args: &[&str]) -> Sample {
        let mut command = self.command("setpriv");
        command.args(["--pdeathsig", "KILL", "taskset", "--cpu-list", processors]).arg(program()).args(args);
        command.env("LTTNG_UST_ALLOW_BLOCKING", "1");
        // Returns from its start only when it is registered with the daemon.
        command.env("LTTNG_UST_REGISTER_TIMEOUT", "-1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut sample = Sample { child, stdin, stdout };
        sample.hear("ready");
        sample
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.daemons.drain(..).rev().for_each(end);
    }
}

/// A program with trace points.
pub(crate) struct Sample {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Sample {
    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it speaks");
        assert_eq!(line.trim(), word);
    }

    /// Emits its events.
    pub(crate) fn go(&mut self) {
        self.begin();
        self.done();
    }

    /// Waits until it has emitted them.
    pub(crate) fn done(&mut self) {
        self.hear("done");
    }

    /// The same, without waiting for the end.
    pub(crate) fn begin(&mut self) {
        writeln!(self.stdin.as_mut().expect("it listens"), "go").expect("it listens");
    }

    /// Waits until it was killed.
    pub(crate) fn dies(mut self) {
        self.begin();
        assert!(!self.child.wait().expect("it was started").success());
    }

    /// Ends it as a program ends.
    pub(crate) fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().expect("it was started").success());
    }
}

/// A room in which root's `/run/lttng` is the test's own; elsewhere LTTNG_HOME is enough.
fn room() -> Option<(Option<Child>, Vec<String>)> {
    // SAFETY: it only tells a number.
    if unsafe { libc::geteuid() } != 0 {
        return Some((None, vec!["env".to_owned()]));
    }
    let script = "mkdir -p /run/lttng && mount -t tmpfs tmpfs /run/lttng && echo ready && exec cat";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    let mut room = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let mut line = String::new();
    BufReader::new(room.stdout.take()?).read_line(&mut line).ok()?;
    if line.trim() != "ready" {
        eprintln!("skipped: no mount name space of its own here");
        return None;
    }
    let prefix = ["nsenter".to_owned(), format!("--mount=/proc/{}/ns/mnt", room.id()), "--".to_owned()];
    Some((Some(room), prefix.to_vec()))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|any| any.local_addr()).expect("a port").port()
}

/// TERM, and what it started has ended with it.
pub(crate) fn end(mut child: Child) {
    // SAFETY: a child of ours that was not waited for: the number is still its.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let _ = child.wait();
}

/// Waits for what has to come.
pub(crate) fn until(what: &str, mut there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The program, compiled once.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
        let path = folder.path().join("sample");
        let mut command = Command::new("gcc");
        command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&path).arg("sample.c");
        command.args(["-I.", "-llttng-ust", "-ldl"]).current_dir(source);
        assert!(command.status().expect("gcc runs").success());
        (folder, path)
    });
    path
}
