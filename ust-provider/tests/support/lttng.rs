//! LTTng daemons for one test, with their own home, user id and session. They end when this is
//! dropped.
//!
//! As root, LTTng has one session daemon for the machine, so the daemons run as an unused user.
//! They end with the test that started them, even if it is killed. babeltrace2 decodes the traces.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Maximum time until a daemon answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Private LTTng daemons.
pub(crate) struct Lttng {
    home: tempfile::TempDir,
    /// User of all processes; none for the user of the test.
    user: Option<u32>,
    daemon: Option<Child>,
}

/// An event as babeltrace2 prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    /// `provider:event`
    pub(crate) name: String,
    /// `{ field = value, … }`
    pub(crate) payload: String,
    pub(crate) vpid: u32,
    pub(crate) vtid: u32,
}

impl Event {
    /// Returns the value of a field, without quotes.
    pub(crate) fn field(&self, name: &str) -> &str {
        let start = self.payload.find(&format!(" {name} = ")).unwrap_or_else(|| panic!("{name} in {self:?}"));
        let value = &self.payload[start + name.len() + 4..];
        match value.strip_prefix('"') {
            Some(text) => &text[..text.find('"').unwrap()],
            None => value.split([',', ' ']).next().unwrap(),
        }
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        // Signed values too: tests compare bits.
        self.field(name).parse::<i128>().unwrap() as u64
    }

    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.name, self.payload)
    }
}

impl Lttng {
    /// Starts the daemons, or returns why this machine cannot.
    pub(crate) fn start() -> Result<Self, String> {
        for program in ["lttng", "lttng-sessiond", "babeltrace2"] {
            let found = Command::new(program).arg("--version").output();
            if !found.is_ok_and(|output| output.status.success()) {
                return Err(format!("{program} is not installed"));
            }
        }
        let user = unused_user();
        let home = tempfile::Builder::new().prefix("blkkin-lttng").tempdir().unwrap();
        let mut lttng = Self { home, user, daemon: None };
        lttng.own(lttng.home.path());
        let log = fs::File::create(lttng.home.path().join("sessiond.log")).unwrap();
        let mut daemon = lttng.command("lttng-sessiond");
        daemon.arg("--no-kernel").stdout(log.try_clone().unwrap()).stderr(log);
        // SAFETY: a system call that takes numbers. It ends the daemon with this process. A change
        // of the user would reset it, so it comes after that.
        unsafe { daemon.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM))) };
        lttng.daemon = Some(daemon.spawn().unwrap());
        let begun = Instant::now();
        while !lttng.command("lttng").arg("list").output().unwrap().status.success() {
            assert!(begun.elapsed() < ANSWER_TIMEOUT, "lttng-sessiond does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(lttng)
    }

    /// Starts the daemons, or prints why the test is skipped.
    pub(crate) fn start_or_skip() -> Option<Self> {
        Self::start().inspect_err(|reason| println!("skipped: {reason}")).ok()
    }

    /// Returns the home of the daemons, which is removed when this is dropped.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns a command with the daemons' user and environment.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("HOME", self.home.path())
            .env("LTTNG_HOME", self.home.path())
            .current_dir(self.home.path());
        // On a busy machine the daemon answers after more than the 3 s that a program waits by default; then it records
        // nothing.
        command.env("LTTNG_UST_REGISTER_TIMEOUT", "60000");
        command.env_remove("LTTNG_UST_DEBUG").env_remove("BLKKIN_UST").env_remove("BLKKIN_UST_ROOTS");
        isolate(&mut command, self.user);
        command
    }

    /// Copies `program` to the home, because the daemons' user may not read its folder.
    pub(crate) fn install(&self, program: &Path) -> PathBuf {
        let copy = self.home.path().join(program.file_name().unwrap());
        copy_program(program, &copy);
        copy
    }

    /// Runs `lttng ARGS`.
    pub(crate) fn lttng(&self, args: &[&str]) -> String {
        succeed(self.command("lttng").args(args).output().unwrap())
    }

    /// Starts a session that records `events`.
    pub(crate) fn record(&self, session: &str, events: &[&str], channel: &[&str]) {
        let output = format!("--output={}", self.trace(session).display());
        self.lttng(&["create", session, &output]);
        self.lttng(&[&["enable-channel", "-u", "c"], channel].concat());
        for event in events {
            self.lttng(&["enable-event", "-u", "-c", "c", event]);
        }
        self.lttng(&["add-context", "-u", "-t", "vpid", "-t", "vtid"]);
        self.lttng(&["start"]);
    }

    /// Ends the session and returns its events, in order of time.
    pub(crate) fn finish(&self, session: &str) -> Vec<Event> {
        self.finish_counting(session).0
    }

    /// Ends the session as [`finish`](Self::finish), and also returns LTTng's count of discarded
    /// events.
    pub(crate) fn finish_counting(&self, session: &str) -> (Vec<Event>, u64) {
        self.lttng(&["stop", session]);
        let list = self.lttng(&["list", session]);
        let count = list.lines().find_map(|line| line.trim().strip_prefix("Discarded events:"));
        let discarded: u64 = count.map_or(0, |count| count.trim().parse().unwrap());
        // Threads that end packets at the same time can make a packet's count lower than the
        // previous one. The consumer takes that for an overflow and adds 2^63 (lttng-tools,
        // consumer_stream_update_stats).
        let discarded = discarded % (1 << 63);
        self.lttng(&["destroy", session]);
        let mut babeltrace = self.command("babeltrace2");
        babeltrace.args(["--names=payload,context", "--fields=trace:hostname"]).arg(self.trace(session));
        (succeed(babeltrace.output().unwrap()).lines().map(event).collect(), discarded)
    }

    fn trace(&self, session: &str) -> PathBuf {
        self.home.path().join("traces").join(session)
    }

    fn own(&self, path: &Path) {
        if let Some(user) = self.user {
            chown(path, Some(user), Some(user)).unwrap();
        }
    }
}

impl Drop for Lttng {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = self.command("lttng").args(["destroy", "--all", "--no-wait"]).output();
            // SAFETY: a child of this process that was not waited for.
            unsafe { libc::kill(daemon.id() as i32, libc::SIGTERM) };
            let _ = daemon.wait();
        }
        remove_wait_file(self.user);
    }
}

/// Removes the shared memory by which a session daemon would wake the programs of `user`.
pub(crate) fn remove_wait_file(user: Option<u32>) {
    if let Some(user) = user {
        let _ = fs::remove_file(format!("/dev/shm/lttng-ust-wait-8-{user}"));
    }
}

/// Copies a program with a separate process. A writable descriptor of this process could be
/// inherited by a child that another thread just forked, and the program could then not be run
/// (ETXTBSY).
pub(crate) fn copy_program(from: &Path, to: &Path) {
    succeed(Command::new("cp").arg(from).arg(to).output().unwrap());
    fs::set_permissions(to, Permissions::from_mode(0o755)).unwrap();
}

/// Returns an unused user id. None if this is not root, because only root can change the user.
pub(crate) fn unused_user() -> Option<u32> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    // SAFETY: it has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    root.then(|| 1_000_000 + std::process::id() * 16 + number)
}

/// Runs the command as `user`, and hides the machine's session daemon, which would record it too.
pub(crate) fn isolate(command: &mut Command, user: Option<u32>) {
    let Some(user) = user else { return };
    let enter = move || {
        // SAFETY: system calls with numbers and strings that end in a NUL, in a child of one
        // thread.
        unsafe {
            check(libc::unshare(libc::CLONE_NEWNS))?;
            let (name, data) = (null::<libc::c_char>(), null::<libc::c_void>());
            check(libc::mount(name, c"/".as_ptr(), name, libc::MS_REC | libc::MS_PRIVATE, data))?;
            let (memory, daemons) = (c"tmpfs".as_ptr(), c"/var/run/lttng".as_ptr());
            // Without this folder there is no such daemon.
            libc::mount(memory, daemons, memory, 0, data);
            check(libc::setgroups(0, null()))?;
            check(libc::setgid(user))?;
            check(libc::setuid(user))
        }
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(enter) };
}

fn check(result: i32) -> std::io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Checks that the command succeeded, and returns its standard output.
pub(crate) fn succeed(output: Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Parses `[time] (+delta) provider:event: { cpu_id = 0 }, { vpid = 1, vtid = 2 }, { … }`
fn event(line: &str) -> Event {
    let (head, rest) = line.split_once(": {").unwrap_or_else(|| panic!("an event: {line}"));
    let name = head.rsplit(' ').next().unwrap().to_owned();
    let mut parts = rest.splitn(3, " }, {");
    let context = parts.nth(1).unwrap();
    let payload = format!("{{{}", parts.next().unwrap());
    let id = |name: &str| {
        let (_, value) = context.split_once(name).unwrap();
        value.split([',', ' ']).next().unwrap().parse().unwrap()
    };
    Event { name, payload, vpid: id("vpid = "), vtid: id("vtid = ") }
}
