//! `blkkin agent`, its spool and its pinned counters, with a real broker that goes away and agents that are killed: what was
//! called is in the topic once and in order, or is told to be lost.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod support;

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, EventConsumer, Group, Received, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::StartEpoch;
use blkkin_wire::killed::{Remains, Tally};
use tempfile::TempDir;

use broker::Broker;
use broker::secure::{About, Listener, Right, allow};
use support::live::eventually;
use support::metrics::{address, value};
use support::service::Service;
use support::{needs, or_skip};

const PATIENCE: Duration = Duration::from_secs(60);
/// So little fits into the producer that the rest has to wait in the spool.
const SMALL_QUEUE: &str = "queue.buffering.max.kbytes=1100";

/// A thread that makes calls which nobody else makes, and counts them.
struct Caller {
    tid: i64,
    made: Arc<AtomicU64>,
    endless: Arc<AtomicBool>,
    orders: Option<Sender<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Caller {
    fn new() -> Caller {
        let (made, endless) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (orders, ordered) = channel::<u64>();
        let (tell, told) = channel();
        let (counts, goes_on) = (Arc::clone(&made), Arc::clone(&endless));
        let thread = std::thread::spawn(move || {
            let file = fs::File::open("/proc/self/exe").unwrap();
            // SAFETY: a number.
            tell.send(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap();
            let mut byte = 0u8;
            while let Ok(calls) = ordered.recv() {
                let (mut left, begun) = (calls, made_before(&counts));
                while left > 0 || goes_on.load(Ordering::Relaxed) {
                    // SAFETY: one byte, which outlives the call.
                    unsafe { libc::pread(file.as_raw_fd(), (&raw mut byte).cast(), 1, 0) };
                    left = left.saturating_sub(1);
                    let made = counts.fetch_add(1, Ordering::Release) + 1;
                    // Some 100,000 a second: a load, and no attempt to overrun rings.
                    if calls > 0 && (made - begun).is_multiple_of(500) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
        });
        let tid = told.recv().unwrap();
        Caller { tid, made, endless, orders: Some(orders), thread: Some(thread) }
    }

    fn order(&self, calls: u64) {
        self.orders.as_ref().unwrap().send(calls).unwrap();
    }

    /// Makes so many, and comes back when all are made.
    fn make(&self, calls: u64) {
        let until = self.made() + calls;
        self.order(calls);
        assert!(eventually(|| self.made() >= until));
    }

    fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }
}

fn made_before(counts: &AtomicU64) -> u64 {
    counts.load(Ordering::Acquire)
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.endless.store(false, Ordering::Relaxed);
        drop(self.orders.take());
        let _ = self.thread.take().unwrap().join();
    }
}

/// A file system for BPF objects of the test's own.
struct Bpffs(TempDir);

impl Bpffs {
    fn mount() -> Result<Bpffs, String> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Ok(Bpffs(folder)),
            other => Err(format!("no BPF file system can be mounted: {other:?}")),
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Starts that have left something, or may do so.
    fn epochs(&self) -> Vec<StartEpoch> {
        let entries = fs::read_dir(self.path().join("blkkin")).into_iter().flatten();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        entries.map(|entry| StartEpoch(u64::from_str_radix(&name(entry), 16).unwrap())).collect()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

/// The agent; killed with the test, however that ends.
struct Agent(Service);

impl Agent {
    fn start(home: &Path, brokers: &str, caller: &Caller, more: &[&str]) -> Agent {
        Agent::start_by(home, brokers, caller, more, |command| command)
    }

    fn start_by(
        home: &Path,
        brokers: &str,
        caller: &Caller,
        more: &[&str],
        by: impl FnOnce(Command) -> Command,
    ) -> Agent {
        let tid = caller.tid.to_string();
        let spool = home.join("spool");
        let words = ["agent", "--brokers", brokers, "--tid", &tid, "--syscall", "pread64"];
        let words =
            [&words[..], &["--metrics", "127.0.0.1:0", "--spool", spool.to_str().unwrap()], more].concat();
        let agent = Agent(Service::start_by(home, "agent", &words, by));
        agent.0.says("tracing; events go", PATIENCE);
        agent
    }

    fn said(&self) -> String {
        self.0.said()
    }

    /// On a machine that has too much to do a connection may be given up before it is served.
    fn metrics(&self) -> String {
        let (said, mut metrics) = (self.said(), String::new());
        let address = address(&said);
        assert!(
            eventually(|| {
                metrics = ask(address).unwrap_or_default();
                metrics.ends_with("# EOF\n")
            }),
            "{}",
            self.said()
        );
        metrics
    }

    fn figure(&self, series: &str) -> f64 {
        value(&self.metrics(), &format!("blkkin_{series}"))
    }

    fn kill(mut self) -> String {
        assert!(self.0.kill());
        self.said()
    }

    fn finish(self) -> (Option<i32>, String) {
        self.0.finish()
    }
}

fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    write!(stream, "{head}Accept: application/openmetrics-text; version=1.0.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// What the topic has, in its order; nothing of it missing.
fn consume(settings: &Settings) -> Vec<EventBatch> {
    let group = Group { name: "test".to_owned(), member: None };
    let mut consumer = EventConsumer::join(settings, &group).unwrap();
    let (mut batches, begun, mut idle) = (Vec::<EventBatch>::new(), Instant::now(), 0);
    let mut next = HashMap::<StartEpoch, u64>::new();
    // Once something came, two seconds of nothing are the end.
    while begun.elapsed() < PATIENCE && (batches.is_empty() || idle < 20) {
        match consumer.next(Duration::from_millis(100)).unwrap() {
            Received::Batch(batch, missing) => {
                let expected = next.entry(batch.source.epoch).or_default();
                assert_eq!(
                    (missing, batch.sequence),
                    (0, *expected),
                    "nothing is missing, from the first on"
                );
                *expected += 1;
                batches.push(*batch);
                idle = 0;
            }
            // Sent again by the next start, and seen to be that.
            Received::Again => idle = 0,
            Received::Nothing => idle += 1,
            Received::Rebalanced { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    batches
}

fn tally(batches: &[EventBatch], epoch: StartEpoch) -> Tally {
    let of_it = batches.iter().filter(|batch| batch.source.epoch == epoch);
    of_it.fold(Tally::default(), |sum, batch| sum.plus(&Tally::of(&batch.events)))
}

/// What later starts have told of this one.
fn told(batches: &[EventBatch], epoch: StartEpoch) -> Option<Remains> {
    let all = batches.iter().flat_map(|batch| &batch.killed);
    let mut found: Vec<_> = all.filter(|killed| killed.epoch == Some(epoch)).collect();
    found.dedup();
    assert!(found.len() <= 1, "{found:?}");
    found.first()?.remains
}

fn files(home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.join("spool")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "batches")).collect();
    files.sort();
    files
}

#[test]
fn while_the_broker_is_away_all_waits_in_the_spool_and_arrives_once_and_in_order() {
    needs!();
    let (home, mut broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let settings = broker.settings();
    let agent = Agent::start(home.path(), &settings.brokers, &caller, &["--set", SMALL_QUEUE]);
    caller.make(5_000);
    assert!(eventually(|| agent.figure("agent_events_delivered_total") > 0.0));
    broker.kill();
    caller.make(150_000);
    assert!(eventually(|| agent.figure("spool_bytes") > 1_200_000.0), "{}", agent.metrics());
    assert!(agent.figure("spool_oldest_seconds") > 0.0);
    broker.up();
    caller.make(5_000);
    assert!(eventually(|| agent.figure("spool_batches") < 5.0), "{}", agent.metrics());
    let read = agent.figure("spool_batches_read_total");
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    assert!(!said.contains("stay in the spool"), "{said}");
    let batches = consume(&settings);
    let last = batches.last().unwrap();
    let calls = tally(&batches, last.source.epoch).calls;
    println!("{read} batches read back; {calls} calls, {} dropped at the rings", last.accounts.calls.dropped);
    assert!(read > 0.0, "the spool was needed");
    assert_eq!(calls + last.accounts.calls.dropped, caller.made());
    assert!(batches.windows(2).all(|two| two[0].watermark <= two[1].watermark));
}

#[test]
fn an_agent_that_is_killed_leaves_its_spool_to_the_next_and_a_torn_end_is_counted() {
    needs!();
    let (home, mut broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let settings = broker.settings();
    broker.kill();
    let start = || Agent::start(home.path(), &settings.brokers, &caller, &["--set", SMALL_QUEUE]);
    let first = start();
    caller.make(20_000);
    assert!(eventually(|| first.figure("spool_batches") > 3.0));
    first.kill();
    let second = start();
    assert!(second.said().contains("batches of earlier starts in the spool"), "{}", second.said());
    caller.make(20_000);
    assert!(eventually(|| second.figure("spool_batches_written_total") > 3.0));
    let refused =
        common::run(&["agent", "--brokers", "h:1", "--spool", home.path().join("spool").to_str().unwrap()]);
    refused.assert_refused(125, "cannot use the spool", "--spool with a folder of its own");
    second.kill();
    // As a machine that went down may leave it.
    let torn = files(home.path()).pop().unwrap();
    let length = fs::metadata(&torn).unwrap().len();
    fs::OpenOptions::new().write(true).open(torn).unwrap().set_len(length - 3).unwrap();
    let third = start();
    assert!(third.said().contains("1 are cut short, and lost"), "{}", third.said());
    assert_eq!(third.figure("spool_batches_torn_total"), 1.0);
    let found = third.figure("spool_batches_found_total");
    caller.make(1_000);
    // Without a cluster it ends soon, and leaves what it has.
    let (status, said) = third.finish();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("stay in the spool"), "{said}");
    broker.up();
    let fourth = start();
    assert!(eventually(|| fourth.figure("spool_batches") < 5.0), "{}", fourth.metrics());
    let (status, said) = fourth.finish();
    assert_eq!(status, Some(0), "{said}");
    let batches = consume(&settings);
    let mut epochs: Vec<_> = batches.iter().map(|batch| batch.source.epoch).collect();
    epochs.dedup();
    assert_eq!(epochs.len(), 4, "start by start, oldest first: {epochs:?}");
    let of = |nth: usize| batches.iter().filter(|batch| batch.source.epoch == epochs[nth]).count();
    assert_eq!((of(0) + of(1)) as f64, found, "all that was whole");
    let calls = epochs.iter().map(|epoch| tally(&batches, *epoch).calls).collect::<Vec<_>>();
    println!("{found} batches found, calls by start: {calls:?}");
    assert!(calls[0] > 0 && calls[1] > 0 && calls[2] == 1_000, "{calls:?}");
}

/// Who may not write yet loses nothing: what was refused waits, and goes when it may.
#[test]
fn what_the_cluster_refuses_for_now_waits_in_the_spool() {
    needs!("openssl");
    let (home, broker, caller) =
        (tempfile::tempdir().unwrap(), or_skip!(Broker::start_guarded("")), Caller::new());
    let settings = broker.settings();
    settings.create_topic(EVENTS, 3, Some(1)).unwrap();
    let as_user = broker.guard().settings(Listener::Scram);
    // It sees the topic; to write there is another right.
    allow(broker.port(), About::Topic, EVENTS, Right::Describe);
    let set: Vec<_> = as_user.extra.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let more: Vec<_> = set.iter().flat_map(|word| ["--set", word]).collect();
    let agent = Agent::start(home.path(), &as_user.brokers, &caller, &more);
    caller.make(20_000);
    assert!(eventually(|| agent.said().contains("what it refuses waits in the spool")), "{}", agent.said());
    assert_eq!(agent.figure("agent_events_delivered_total"), 0.0);
    caller.make(20_000);
    assert!(eventually(|| agent.figure("spool_batches") > 3.0), "{}", agent.metrics());
    allow(broker.port(), About::Topic, EVENTS, Right::Write);
    caller.make(1_000);
    assert!(eventually(|| agent.figure("spool_batches") < 5.0), "{}", agent.metrics());
    assert_eq!(agent.figure("agent_events_failed_total"), 0.0);
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    let batches = consume(&settings);
    let last = batches.last().unwrap();
    let calls = tally(&batches, last.source.epoch).calls;
    assert_eq!(calls + last.accounts.calls.dropped, caller.made());
    assert_eq!(caller.made(), 41_000);
}

#[test]
fn a_full_spool_stops_what_comes_before_it_and_the_books_balance() {
    needs!();
    let (home, mut broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let settings = broker.settings();
    broker.kill();
    let more = ["--set", SMALL_QUEUE, "--spool-max", "4M", "--ring-size", "64K"];
    let agent = Agent::start(home.path(), &settings.brokers, &caller, &more);
    caller.endless.store(true, Ordering::Relaxed);
    caller.order(0);
    let dropped = || agent.figure("records_dropped_total{kind=\"call\"}");
    assert!(
        eventually(|| agent.figure("agent_waited_seconds_total") > 0.3 && dropped() > 0.0),
        "{}",
        agent.metrics()
    );
    assert!(agent.figure("spool_bytes") <= f64::from(4 << 20));
    assert!(files(home.path()).iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>() <= 4 << 20);
    caller.endless.store(false, Ordering::Relaxed);
    broker.up();
    assert!(eventually(|| agent.figure("spool_batches") < 5.0), "{}", agent.metrics());
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    let batches = consume(&settings);
    let last = batches.last().unwrap();
    let (calls, dropped) = (tally(&batches, last.source.epoch).calls, last.accounts.calls.dropped);
    println!("{} calls: {calls} arrived, {dropped} had no room in a ring", caller.made());
    assert!(dropped > 0);
    assert_eq!(calls + dropped, caller.made());
}

/// In each round so many calls.
const CALLS: u64 = 6_000;
const ROUNDS: u64 = 8;

#[test]
fn what_a_killed_agent_lost_is_told_to_the_record() {
    needs!("mount");
    let (home, broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let (settings, bpffs) = (broker.settings(), or_skip!(Bpffs::mount()));
    let more = ["--bpffs", bpffs.path().to_str().unwrap()];
    let start = || Agent::start(home.path(), &settings.brokers, &caller, &more);
    let (mut rounds, mut seed) = (Vec::new(), 0x9e37_79b9_7f4a_7c15_u64);
    for round in 0..ROUNDS {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let known: Vec<_> = rounds.iter().map(|(epoch, _)| *epoch).collect();
        let (agent, before) = (start(), caller.made());
        let epoch = bpffs.epochs().into_iter().find(|epoch| !known.contains(epoch)).unwrap();
        let moment = Duration::from_micros((seed >> 33) % 120_000);
        // While calls are made, or when all are.
        let all_were_made = round % 2 == 0;
        if all_were_made {
            caller.make(CALLS)
        } else {
            caller.order(CALLS)
        }
        std::thread::sleep(moment);
        agent.kill();
        assert!(eventually(|| caller.made() == before + CALLS));
        rounds.push((epoch, all_were_made));
    }
    // Beside one that lives, who is not taken for dead.
    let beside = tempfile::tempdir().unwrap();
    let living = Agent::start(beside.path(), &settings.brokers, &caller, &more);
    let last = start();
    assert!(bpffs.epochs().len() >= 2, "{:?}", bpffs.epochs());
    assert!(eventually(|| bpffs.epochs().len() == 2), "who was told is gone: {:?}", bpffs.epochs());
    for agent in [last, living] {
        let (status, said) = agent.finish();
        assert_eq!(status, Some(0), "{said}");
    }
    assert_eq!(bpffs.epochs(), [], "an orderly end leaves nothing");
    let batches = consume(&settings);
    let (mut lost, mut kept) = (0, 0);
    for (epoch, all_were_made) in &rounds {
        let remains = told(&batches, *epoch).unwrap_or_else(|| panic!("{epoch:?} was told by nobody"));
        let arrived = tally(&batches, *epoch);
        let sum = arrived.plus(&remains.lost());
        assert_eq!((sum, remains.doubtful), (remains.fired, Tally::default()), "{epoch:?}: {remains:?}");
        if *all_were_made {
            assert_eq!(remains.fired.calls, CALLS, "as whoever made them says: {remains:?}");
        }
        (lost, kept) = (lost + remains.lost().calls, kept + arrived.calls);
    }
    println!("{ROUNDS} agents killed: {kept} calls arrived, {lost} are told to be lost");
    assert!(lost > 0 && kept > 0);
    let strangers = batches.iter().flat_map(|batch| &batch.killed);
    let known =
        strangers.map(|killed| killed.epoch).all(|epoch| rounds.iter().any(|round| Some(round.0) == epoch));
    assert!(known, "nobody else was killed");
}

/// What systemd does for a service with `FileDescriptorStoreMax=`.
struct Manager {
    socket: UnixDatagram,
    folder: TempDir,
    kept: Vec<(String, OwnedFd)>,
}

impl Manager {
    fn new() -> Manager {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Manager { socket, folder, kept: Vec::new() }
    }

    /// The same command, as the manager starts it: with what is kept, from descriptor 3 on.
    fn start(&self, command: Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "export LISTEN_PID=$$; exec \"$@\"", "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        let names: Vec<_> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        shell.env("NOTIFY_SOCKET", self.folder.path().join("notify")).env("FDSTORE", "8");
        shell.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        let kept: Vec<_> = self.kept.iter().map(|(_, descriptor)| descriptor.as_raw_fd()).collect();
        // SAFETY: fcntl and dup2 are async-signal-safe; numbers only. No more than 8 are kept.
        unsafe {
            shell.pre_exec(move || {
                // Out of the way first, so that none is written over before it is moved.
                let mut away = [0; 8];
                for (fd, away) in kept.iter().zip(&mut away) {
                    *away = libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 100);
                }
                away.iter().take(kept.len()).zip(3..).for_each(|(fd, place)| {
                    libc::dup2(*fd, place);
                });
                Ok(())
            });
        }
        shell
    }

    fn names(&self) -> Vec<String> {
        self.kept.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Takes in what it was told.
    fn hear(&mut self) {
        while let Some((words, descriptor)) = receive(&self.socket) {
            let name = words.lines().find_map(|line| line.strip_prefix("FDNAME="));
            let name = name.unwrap_or_default().to_owned();
            if words.contains("FDSTORE=1") {
                assert!(words.contains("FDPOLL=0"), "else systemd takes a map for broken, and lets it go");
                self.kept.push((name, descriptor.unwrap()));
            } else if words.contains("FDSTOREREMOVE=1") {
                self.kept.retain(|(kept, _)| *kept != name);
            }
        }
    }
}

/// A message, and the descriptor that came with it.
fn receive(socket: &UnixDatagram) -> Option<(String, Option<OwnedFd>)> {
    let (mut words, mut control) = ([0u8; 4096], [0u64; 8]);
    let mut part = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: words.len() };
    // SAFETY: all zeros are a message header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    // SAFETY: the header points at memory that outlives the call, and says how long it is.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let text = String::from_utf8_lossy(words.get(..usize::try_from(length).ok()?)?).into_owned();
    // SAFETY: the kernel has filled the header in; a control message of rights holds descriptors that are ours now.
    let descriptor = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        (!first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS)
            .then(|| OwnedFd::from_raw_fd(std::ptr::read_unaligned(libc::CMSG_DATA(first).cast::<i32>())))
    };
    Some((text, descriptor))
}

#[test]
fn a_manager_that_keeps_descriptors_is_enough_to_tell_what_was_lost() {
    needs!("sh");
    let (home, broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let (settings, mut manager) = (broker.settings(), Manager::new());
    let none = home.path().to_str().unwrap();
    let start = |manager: &Manager| {
        let by = |command| manager.start(command);
        Agent::start_by(home.path(), &settings.brokers, &caller, &["--bpffs", none], by)
    };
    let first = start(&manager);
    caller.make(CALLS);
    assert!(!first.kill().contains("unknown"));
    manager.hear();
    assert_eq!(manager.kept.len(), 2, "{:?}", manager.kept);
    let killed = manager.names();
    let second = start(&manager);
    assert!(second.said().contains("was killed"), "{}", second.said());
    assert!(eventually(|| {
        manager.hear();
        manager.kept.len() == 2 && manager.names() != killed
    }));
    let (status, said) = second.finish();
    assert_eq!(status, Some(0), "{said}");
    manager.hear();
    assert!(manager.kept.is_empty(), "an orderly end leaves nothing: {:?}", manager.kept);
    let batches = consume(&settings);
    let epoch = batches.iter().flat_map(|batch| &batch.killed).next().unwrap().epoch.unwrap();
    let remains = told(&batches, epoch).unwrap();
    let sum = tally(&batches, epoch).plus(&remains.lost());
    assert_eq!((sum, remains.fired.calls), (remains.fired, CALLS), "{remains:?}");
}

#[test]
fn where_nothing_can_be_pinned_losses_are_unknown_and_not_zero() {
    needs!();
    let (home, caller) = (tempfile::tempdir().unwrap(), Caller::new());
    let none = home.path().to_str().unwrap();
    let start = || Agent::start(home.path(), "127.0.0.1:1", &caller, &["--bpffs", none]);
    let first = start();
    assert!(first.said().contains("should it be killed, will be unknown"), "{}", first.said());
    assert!(first.said().contains("is no BPF file system"), "{}", first.said());
    first.kill();
    let second = start();
    assert!(second.said().contains("is unknown"), "{}", second.said());
    let metrics = second.metrics();
    assert_eq!(value(&metrics, "blkkin_killed_starts_total{losses=\"unknown\"}"), 1.0);
    assert!(!metrics.contains("killed_records_lost"), "{metrics}");
    second.kill();
}
