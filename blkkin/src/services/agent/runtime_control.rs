//! Changes of what the agent records, while it runs: the server of `blkkin ctl`.
//!
//! *In*: requests by a Unix socket. *Out*: settings of the tracer, and the answer with the state. *Invariant*: a
//! change is applied whole or not at all; the answer comes after it; and the log names the user and process that
//! asked for it.
//!
//! *Time*: a change with a time ends after it, and the lasting settings apply again. A later change with a time is
//! added to it, and has its own time for both. A change without a time is made to the lasting settings too.
//!
//! *Access*: root, and a group if the operator names one, by the mode of the socket's file. One client at a time has
//! [`CLIENT_LIMIT`]; so a change ends at most that much late.
//!
//! *Rejected*: the port of the metrics. Its clients may see but not change anything, and have no user.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime};

use blkkin_tracer::budget::BudgetStatus;
use blkkin_tracer::capture::{CaptureControl, CaptureSettings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use tracing::{info, warn};

use crate::cli::{AgentArgs, FilterArgs};
use crate::ctl::protocol::{self, Answer, Change, ChangeRecord, REQUEST_MAX, Request, Settings, State};
use crate::error::{CliError, cannot_spawn};
use crate::filter::{keep, sampling};
use crate::service::{MetricFamily, MetricKind, format_utc, peer_credentials};

/// Time that a client has for its request, and again for the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);
const GROUPS: &str = "/etc/group";
/// Clients that wait for their turn.
const BACKLOG: i32 = 128;
/// Most rules that a client may set.
const RULES_MAX: usize = 64;
/// Number of changes that the state lists.
const CHANGES_MAX: usize = 8;

/// Counters of changes, for the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct ControlStats(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    changes: AtomicU64,
    refused: AtomicU64,
    is_paused: AtomicBool,
}

/// An open socket that is not served yet.
pub(super) struct ControlSocket(UnixListener);

impl ControlSocket {
    /// Opens the socket of the options, with its group; none without the option.
    pub(super) fn open(args: &AgentArgs) -> Result<Option<ControlSocket>, CliError> {
        let Some(path) = &args.ctl else { return Ok(None) };
        let group = args.ctl_group.as_deref().map(group_id).transpose()?;
        let listener = bind(path, group).map_err(|error| {
            CliError::cannot_trace(
                format!("cannot listen for blkkin ctl at {}", path.display()),
                error,
                "--ctl PATH in a folder where this user may create files, which no other agent uses",
            )
        })?;
        Ok(Some(ControlSocket(listener)))
    }

    /// Serves clients in a thread, until the process exits.
    pub(super) fn serve(self, args: &AgentArgs, capture: CaptureControl) -> Result<ControlStats, CliError> {
        let mut start = Settings {
            recording: true,
            sample: args.filter.sample.clone().unwrap_or_else(|| "1/1".into()),
            keep: args.filter.keep.iter().map(|rule| rule.trim().to_owned()).collect(),
            budget: args.budget.clone(),
        };
        resolve(&mut start, &args.filter)?;
        let stats = ControlStats::default();
        let changes = VecDeque::new();
        let schedule = Schedule { lasting: start.clone(), timed: None };
        let filter = args.filter.clone();
        let server = Server { capture, filter, start, schedule, changes, stats: stats.clone() };
        Builder::new()
            .name("ctl".into())
            .spawn(move || server.run(&self.0))
            .map_err(|error| cannot_spawn("cannot serve blkkin ctl", &error))?;
        Ok(stats)
    }
}

/// Settings, and those that end at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Schedule {
    lasting: Settings,
    timed: Option<(Settings, Instant)>,
}

impl Schedule {
    fn now(&self) -> &Settings {
        self.timed.as_ref().map_or(&self.lasting, |(settings, _)| settings)
    }

    /// Returns the schedule with a change.
    fn with(&self, change: &Change, now: Instant) -> Schedule {
        let changed = |settings: &Settings| Settings {
            recording: change.recording.unwrap_or(settings.recording),
            sample: change.sample.as_ref().unwrap_or(&settings.sample).clone(),
            keep: change.keep.as_ref().unwrap_or(&settings.keep).clone(),
            budget: change.budget.as_ref().or(settings.budget.as_ref()).cloned(),
        };
        let end = change.for_ms.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
        let (lasting, timed) = match end {
            Some(end) => (self.lasting.clone(), Some((changed(self.now()), end))),
            None => {
                let timed = self.timed.as_ref().map(|(settings, end)| (changed(settings), *end));
                (changed(&self.lasting), timed)
            }
        };
        let timed = timed.filter(|(settings, _)| *settings != lasting);
        Schedule { lasting, timed }
    }

    /// Returns the time until the change ends that is for a time.
    fn left(&self, now: Instant) -> Option<Duration> {
        self.timed.as_ref().map(|(_, end)| end.saturating_duration_since(now))
    }
}

struct Server {
    capture: CaptureControl,
    /// Options of the start, which some rules contradict.
    filter: FilterArgs,
    start: Settings,
    schedule: Schedule,
    changes: VecDeque<ChangeRecord>,
    stats: ControlStats,
}

impl Server {
    fn run(mut self, listener: &UnixListener) {
        loop {
            if self.schedule.left(Instant::now()).is_some_and(|left| left.is_zero()) {
                self.end_timed();
            }
            match wait(listener, self.schedule.left(Instant::now())) {
                Ok(false) => {}
                Ok(true) => match listener.accept() {
                    Ok((client, _)) => self.serve(client),
                    Err(error) => pause(&error),
                },
                Err(error) => pause(&error),
            }
        }
    }

    fn end_timed(&mut self) {
        let next = Schedule { timed: None, ..self.schedule.clone() };
        match self.apply(next) {
            Ok(()) => self.record(None, "the time of a change has ended".into()),
            Err(error) => {
                warn!("the lasting settings cannot be restored yet: {} ({})", error.what, error.why);
                let retry = Instant::now() + CLIENT_LIMIT;
                self.schedule.timed.iter_mut().for_each(|(_, end)| *end = retry);
            }
        }
    }

    fn serve(&mut self, mut client: UnixStream) {
        let answer = match protocol::receive::<Request>(&mut client, REQUEST_MAX, CLIENT_LIMIT) {
            Ok(request) => self.answer(&request, &client),
            Err(error) => self.refused(CliError::usage(
                "bad request to the agent",
                error,
                "blkkin ctl of the same version",
            )),
        };
        // A client that has gone reads no answer; its change is in the log.
        let _ = protocol::send(&mut client, &answer, CLIENT_LIMIT);
    }

    fn answer(&mut self, request: &Request, client: &UnixStream) -> Answer {
        let now = Instant::now();
        let (next, what) = match request {
            Request::Show => return Answer::State(self.state(now).into()),
            Request::Change(change) => (self.schedule.with(change, now), change.arguments()),
            Request::Reset => (Schedule { lasting: self.start.clone(), timed: None }, "reset".to_owned()),
        };
        match self.apply(next) {
            Ok(()) => {
                self.record(peer_credentials(client), what);
                Answer::State(self.state(now).into())
            }
            Err(error) => self.refused(error),
        }
    }

    fn refused(&self, CliError { what, why, remedy, .. }: CliError) -> Answer {
        self.stats.0.refused.fetch_add(1, Relaxed);
        Answer::Refused { what, why, remedy }
    }

    /// Applies the settings of a schedule, or none of them.
    fn apply(&mut self, mut schedule: Schedule) -> Result<(), CliError> {
        let mut settings = resolve(&mut schedule.lasting, &self.filter)?;
        if let Some((timed, _)) = &mut schedule.timed {
            settings = resolve(timed, &self.filter)?;
        }
        if settings.budget.is_some() && self.capture.budget().is_none() {
            return Err(CliError::usage(
                "--budget cannot be added to this agent",
                "it was started without, so its programs do not measure their time",
                "blkkin agent --budget 10%, which blkkin ctl can then change",
            ));
        }
        self.capture.set(&settings)?;
        self.stats.0.is_paused.store(settings.is_paused, Relaxed);
        self.schedule = schedule;
        Ok(())
    }

    fn record(&mut self, from: Option<libc::ucred>, what: String) {
        self.stats.0.changes.fetch_add(1, Relaxed);
        let (uid, pid) = from.map(|from| (from.uid, from.pid)).unzip();
        match (uid, pid) {
            (Some(uid), Some(pid)) => info!(uid, pid, "blkkin ctl {what}, by user {uid} (pid {pid})"),
            _ => info!("{what}"),
        }
        let at = format_utc(SystemTime::now());
        self.changes.push_front(ChangeRecord { at, uid, pid, what });
        self.changes.truncate(CHANGES_MAX);
    }

    fn state(&self, now: Instant) -> State {
        let left = self.schedule.left(now).map(|left| left.as_millis() as u64);
        let budget = self.capture.budget();
        State {
            now: self.schedule.now().clone(),
            afterwards: left.map(|left| (self.schedule.lasting.clone(), left)),
            start: self.start.clone(),
            one_in: match &budget {
                Some(status) => status.one_in(),
                None => self.capture.settings().sample.one_in(),
            },
            keep_suspended: budget.as_ref().is_some_and(BudgetStatus::keep_suspended),
            changes: self.changes.iter().cloned().collect(),
        }
    }
}

impl ControlStats {
    pub(super) fn metric_families(&self) -> Vec<MetricFamily> {
        let Counters { changes, refused, is_paused } = &*self.0;
        let single = |kind, name, help, value| MetricFamily::single(kind, name, help, value);
        vec![
            single(
                MetricKind::Counter,
                "ctl_changes",
                "Changes of what is recorded, by blkkin ctl or at the end of their time",
                changes.load(Relaxed) as f64,
            ),
            single(
                MetricKind::Counter,
                "ctl_refused",
                "Requests to the control socket that were refused",
                refused.load(Relaxed) as f64,
            ),
            single(
                MetricKind::Gauge,
                "ctl_paused",
                "1 while no operation is recorded, because of blkkin ctl off",
                f64::from(u8::from(is_paused.load(Relaxed))),
            ),
        ]
    }
}

/// Resolves settings as the agent resolves its options, and writes them in their usual form.
fn resolve(settings: &mut Settings, filter: &FilterArgs) -> Result<CaptureSettings, CliError> {
    let sample = sampling::ratio(&settings.sample)?;
    if settings.keep.len() > RULES_MAX {
        return Err(CliError::usage(
            format!("{} rules for --keep", settings.keep.len()),
            format!("blkkin ctl takes at most {RULES_MAX}"),
            "groups: read, write, sync",
        ));
    }
    let keep = keep::rules(&FilterArgs { keep: settings.keep.clone(), ..filter.clone() })?;
    let budget = settings.budget.as_deref().map(sampling::budget).transpose()?;
    settings.sample = format!("1/{}", sample.one_in());
    settings.keep.iter_mut().for_each(|rule| *rule = rule.trim().to_owned());
    settings.budget = budget.map(|budget| format!("{}%", budget.share() * 100.0));
    Ok(CaptureSettings { is_paused: !settings.recording, sample, keep, budget })
}

/// Waits after an error of the socket, such as a lack of file descriptors.
fn pause(error: &io::Error) {
    warn!("blkkin ctl is not served for {} s: {error}", CLIENT_LIMIT.as_secs());
    std::thread::sleep(CLIENT_LIMIT);
}

/// Waits for a client. Returns false after `limit`.
fn wait(listener: &UnixListener, limit: Option<Duration>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(&mut fds, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Binds the socket for root, and for a group. The file of an agent that has ended is replaced.
fn bind(path: &Path, group: Option<u32>) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let listener = match bind_private(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::Error::new(error.kind(), "there is a file, which is no socket"));
            }
            match UnixStream::connect(path) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {}
                _ => return Err(io::Error::new(error.kind(), "another agent listens there")),
            }
            fs::remove_file(path)?;
            bind_private(path)?
        }
        other => other?,
    };
    if let Some(group) = group {
        lchown(path, None, Some(group))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    }
    Ok(listener)
}

/// Binds a socket to which only this user and root can connect, from its first moment on: the file gets its mode
/// from that of the socket (`unix_bind_bsd`, net/unix/af_unix.c).
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Returns the number of a group, by its name or number. Groups of directory services have a number only: a
/// statically linked program cannot ask for them.
fn group_id(group: &str) -> Result<u32, CliError> {
    let number = |text: &str| text.parse::<u32>().ok();
    let unknown = |why: String| {
        CliError::usage(
            format!("unknown group `{group}` for --ctl-group"),
            why,
            "--ctl-group with a group of /etc/group, or its number (getent group NAME)",
        )
    };
    if let Some(number) = number(group) {
        return Ok(number);
    }
    let groups = fs::read_to_string(GROUPS).map_err(|error| unknown(format!("{GROUPS}: {error}")))?;
    // name:password:number:members
    let fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found =
        fields.filter(|fields| fields.first() == Some(&group)).find_map(|fields| number(fields.get(2)?));
    found.ok_or_else(|| unknown(format!("{GROUPS} has no group of that name")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(sample: &str) -> Settings {
        Settings { recording: true, sample: sample.into(), keep: Vec::new(), budget: None }
    }

    fn change(sample: &str, for_ms: Option<u64>) -> Change {
        Change { sample: Some(sample.into()), for_ms, ..Change::default() }
    }

    #[test]
    fn a_change_with_a_time_ends_and_one_without_stays() {
        let now = Instant::now();
        let first = Schedule { lasting: settings("1/8"), timed: None };
        let timed = first.with(&change("1/1", Some(1000)), now);
        assert_eq!((timed.now().sample.as_str(), timed.lasting.sample.as_str()), ("1/1", "1/8"));
        assert_eq!(timed.left(now), Some(Duration::from_secs(1)));
        assert_eq!(timed.left(now + Duration::from_secs(2)), Some(Duration::ZERO));
        // A second one with a time changes what is there now, and returns to what was there at first.
        let off = Change { recording: Some(false), for_ms: Some(5000), ..Change::default() };
        let second = timed.with(&off, now);
        assert_eq!((second.now().sample.as_str(), second.now().recording), ("1/1", false));
        assert_eq!(
            (second.lasting.clone(), second.left(now)),
            (settings("1/8"), Some(Duration::from_secs(5)))
        );
        // One without a time stays, and ends no other: it is still off for 5 s, and on with 1/2 from then on.
        let lasting = second.with(&change("1/2", None), now);
        assert_eq!((lasting.now().sample.as_str(), lasting.now().recording), ("1/2", false));
        assert_eq!(
            (lasting.lasting.clone(), lasting.left(now)),
            (settings("1/2"), Some(Duration::from_secs(5)))
        );
        // Nothing is left to end.
        let on = Change { recording: Some(true), ..Change::default() };
        assert_eq!(lasting.with(&on, now), Schedule { lasting: settings("1/2"), timed: None });
    }

    #[test]
    fn settings_are_resolved_as_options_are() {
        let filter = FilterArgs::default();
        let keep = vec![" 10ms".to_owned(), "failed".to_owned()];
        let mut all = Settings { keep, budget: Some("1.0%".into()), recording: false, ..settings("1/064") };
        let resolved = resolve(&mut all, &filter).unwrap();
        assert_eq!((resolved.is_paused, resolved.sample.one_in(), resolved.keep.len()), (true, 64, 2));
        assert_eq!((&*all.sample, &*all.keep[0], all.budget.as_deref()), ("1/64", "10ms", Some("1%")));
        assert!(resolve(&mut settings("1/3"), &filter).unwrap_err().why.contains("power of two"));
        let rules = |rules: &[&str]| {
            let keep = rules.iter().map(|rule| (*rule).to_owned()).collect();
            Settings { keep, ..settings("1/1") }
        };
        assert_eq!(resolve(&mut rules(&["fsnyc>1ms"]), &filter).unwrap_err().remedy, "--keep 'fsync>1ms'");
        assert!(resolve(&mut rules(&["1ms"; 65]), &filter).unwrap_err().why.contains("at most 64"));
        let slow = FilterArgs { slower_than: Some("1ms".into()), ..FilterArgs::default() };
        assert!(resolve(&mut rules(&["1ms"]), &slow).unwrap_err().what.contains("--slower-than"));
    }

    #[test]
    fn the_socket_is_private_and_replaces_that_of_an_ended_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/ctl.sock");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let first = bind(&path, None).unwrap();
        assert_eq!(mode(), 0o600);
        assert!(bind(&path, None).unwrap_err().to_string().contains("another agent"));
        drop(first);
        let _second = bind(&path, None).unwrap();
        assert_eq!(mode(), 0o600);
        let file = folder.path().join("agent.toml");
        fs::write(&file, "sample = 1").unwrap();
        assert!(bind(&file, None).unwrap_err().to_string().contains("no socket"));
        assert!(fs::read_to_string(&file).unwrap().contains("sample"));
        assert_eq!((group_id("root").unwrap(), group_id("4711").unwrap()), (0, 4711));
        assert!(group_id("no-such-group").unwrap_err().why.contains("/etc/group"));
    }
}
