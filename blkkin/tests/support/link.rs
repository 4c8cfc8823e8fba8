//! Two nodes on one kernel, a network namespace, a machine-id and LTTng's folders each, and between them a link that does what it is told: it delays, it loses, it is
//! cut.
//!
//! The link is a TUN device in each namespace and this process between them, so it needs no queueing discipline (netem) of the
//! kernel, and knows of each packet how long it really took and whether it was lost. Both ends, and what runs on them, end when it is
//! dropped.

#[path = "link/account.rs"]
mod account;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::live::eventually;
use crate::support::tools::{capture, tool};

use account::Account;

/// Of nobody's machine (RFC 5737).
pub(crate) const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// Machine-ids.
pub(crate) const MACHINES: [u128; 2] = [0xa, 0xb];
/// The device at each end.
const DEVICE: &str = "link0";
/// What makes a node of namespaces. Whoever else uses LTTng on this machine, and what runs on a node, do not find each other.
const BOOT: &str = "mount --bind \"$1\" /etc/machine-id && mkdir -p /run/lttng && mount -t tmpfs tmpfs /run/lttng && \
    mount -t tmpfs tmpfs /dev/shm && exec sleep 100000";
/// Packets under way in one direction.
const PACKETS: usize = 4_096;
/// The last part of a wait is not slept: a sleep ends late.
const SPIN: Duration = Duration::from_micros(120);
/// "Request message" of NBD's doc/proto.md: its length, and how one for a read begins.
const REQUEST: usize = 28;
const READ: [u8; 8] = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0];
/// include/uapi/linux/if_tun.h: TUNSETIFF, IFF_TUN | IFF_NO_PI.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const FLAGS: u16 = 0x0001 | 0x1000;

/// Namespaces, held by a process that sleeps in them.
pub(crate) struct Node {
    sleeper: Child,
    /// Its machine-id is in it.
    _id: tempfile::NamedTempFile,
}

/// Both, and what is between them. Direction 0 is from the first to the second.
pub(crate) struct Link {
    pub(crate) nodes: [Node; 2],
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    stop: AtomicBool,
    delay_ns: AtomicU64,
    /// Of the first node's segments that ask for a read each so-manieth is lost; 0: none is.
    loses_reads: AtomicU64,
    reads: AtomicU64,
    /// The offsets of those that were, each as often as that.
    lost: Mutex<Vec<u64>>,
    /// All segments of the second node's with data are.
    loses_answers: AtomicBool,
    account: Account,
}

impl Node {
    fn boot(number: u128) -> Result<Node, String> {
        let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        fs::write(file.path(), format!("{number:032x}\n")).unwrap();
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--mount", "sh", "-c", BOOT, "boot"]).arg(file.path()).stdin(Stdio::null());
        // SAFETY: prctl is async-signal-safe and touches no memory of ours.
        unsafe {
            unshare.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let sleeper = unshare.spawn().map_err(|error| format!("unshare: {error}"))?;
        let node = Node { sleeper, _id: file };
        let comm = format!("/proc/{}/comm", node.sleeper.id());
        let sleeps = || fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == "sleep");
        eventually(sleeps).then_some(node).ok_or_else(|| "a node does not boot".to_owned())
    }

    /// A program that is to run there.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = tool("nsenter");
        command.args(["--target", &self.sleeper.id().to_string(), "--net", "--mount", program]);
        command
    }

    /// The same, and it gets a CPU at once when it wakes up: both nodes, a broker and all who listen share this machine's, and
    /// what they took would be called the network's.
    pub(crate) fn at_once(&self, program: &str) -> Command {
        let mut command = self.program("chrt");
        command.args(["--fifo", "1", program]);
        command
    }

    /// The same where a service is reached by this machine's own network.
    pub(crate) fn service(&self, service: &Command) -> Command {
        let mut command = tool("nsenter");
        command.args(["--target", &self.sleeper.id().to_string(), "--mount"]);
        command.arg(service.get_program()).args(service.get_args());
        command
    }

    /// What it says.
    pub(crate) fn says(&self, words: &[&str]) -> Result<String, String> {
        capture(self.program(words[0]).args(&words[1..]))
    }

    /// What the kernel counts of TCP there (/proc/net/snmp): RetransSegs.
    pub(crate) fn resent(&self) -> u64 {
        let snmp = fs::read_to_string(format!("/proc/{}/net/snmp", self.sleeper.id())).unwrap();
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let mut both = names.split(' ').zip(values.split(' '));
        both.find(|(name, _)| *name == "RetransSegs").unwrap().1.parse().unwrap()
    }

    /// A TUN device in this namespace.
    fn tun(&self, address: &str) -> Result<File, String> {
        let namespace = format!("/proc/{}/ns/net", self.sleeper.id());
        let enter = move || -> std::io::Result<File> {
            let namespace = File::open(namespace)?;
            // SAFETY: numbers only; this thread alone goes there, and ends.
            if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let tun = File::options().read(true).write(true).open("/dev/net/tun")?;
            // struct ifreq: a name of 16 bytes, then a union of 24, of which the flags are the first two.
            let mut request = [0_u8; 40];
            request[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
            request[16..18].copy_from_slice(&FLAGS.to_ne_bytes());
            // SAFETY: the request is as long as a struct ifreq, and lives as long as the call.
            if unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(tun)
        };
        let tun =
            std::thread::spawn(enter).join().unwrap().map_err(|error| format!("no TUN device: {error}"))?;
        self.says(&["ip", "link", "set", "lo", "up"])?;
        self.says(&["ip", "addr", "add", &format!("{address}/24"), "dev", DEVICE])?;
        self.says(&["ip", "link", "set", DEVICE, "up"])?;
        Ok(tun)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.sleeper.kill();
        let _ = self.sleeper.wait();
    }
}

impl Link {
    /// Two nodes and a link that delays nothing; or why there are none.
    pub(crate) fn up() -> Result<Link, String> {
        let nodes = [Node::boot(MACHINES[0])?, Node::boot(MACHINES[1])?];
        let tuns = [nodes[0].tun(ADDRESSES[0])?, nodes[1].tun(ADDRESSES[1])?];
        let state = Arc::new(State::default());
        let mut threads = Vec::new();
        for direction in [0, 1] {
            let (from, to) = (again(&tuns[direction]), again(&tuns[1 - direction]));
            let (sender, receiver) = sync_channel(PACKETS);
            let (reads, writes) = (Arc::clone(&state), Arc::clone(&state));
            threads.push(std::thread::spawn(move || reads.read(direction, from, sender)));
            threads.push(std::thread::spawn(move || writes.write(direction, to, receiver)));
        }
        Ok(Link { nodes, state, threads })
    }

    /// Each packet takes so long from now on, each way.
    pub(crate) fn delay(&self, each_way: Duration) {
        self.state.delay_ns.store(each_way.as_nanos() as u64, Ordering::SeqCst);
    }

    /// How long it really took of a request, there and back, since this was asked last: the median.
    pub(crate) fn took(&self) -> Duration {
        self.state.account.median()
    }

    /// Of the first node's segments that ask for a read each so-manieth is lost from now on; 0: none.
    pub(crate) fn lose_reads(&self, one_in: u64) {
        self.state.loses_reads.store(one_in, Ordering::SeqCst);
    }

    /// The offsets of those that were lost, each as often as that.
    pub(crate) fn lost(&self) -> Vec<u64> {
        self.state.lost.lock().unwrap().clone()
    }

    /// All that the second node sends is lost from now on, but for acknowledgements alone.
    pub(crate) fn lose_answers(&self) {
        self.state.loses_answers.store(true, Ordering::SeqCst);
    }

    /// Takes the first node's end down: what is under way goes nowhere, and nobody is told.
    pub(crate) fn cut(&self) {
        self.nodes[0].says(&["ip", "link", "set", DEVICE, "down"]).unwrap();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

impl State {
    fn read(&self, direction: usize, mut tun: File, out: SyncSender<(Instant, Vec<u8>)>) {
        at_once();
        let mut buffer = vec![0; 65_536];
        while !self.stop.load(Ordering::SeqCst) {
            let mut poll = libc::pollfd { fd: tun.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd, which lives as long as the call.
            if unsafe { libc::poll(&raw mut poll, 1, 100) } != 1 {
                continue;
            }
            // A device that is down has nothing to read.
            let Ok(bytes) = tun.read(&mut buffer) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let came = Instant::now();
            self.account.came(direction, &buffer[..bytes], came);
            if !self.is_lost(direction, &buffer[..bytes])
                && out.send((came, buffer[..bytes].to_vec())).is_err()
            {
                return;
            }
        }
    }

    fn is_lost(&self, direction: usize, packet: &[u8]) -> bool {
        let data = data(packet);
        if direction == 1 {
            return !data.is_empty() && self.loses_answers.load(Ordering::SeqCst);
        }
        let one_in = self.loses_reads.load(Ordering::SeqCst);
        if one_in == 0 || data.len() != REQUEST || !data.starts_with(&READ) {
            return false;
        }
        let lost = (self.reads.fetch_add(1, Ordering::SeqCst) + 1).is_multiple_of(one_in);
        if lost {
            self.lost.lock().unwrap().push(u64::from_be_bytes(data[16..24].try_into().unwrap()));
        }
        lost
    }

    fn write(&self, direction: usize, mut tun: File, packets: Receiver<(Instant, Vec<u8>)>) {
        at_once();
        // SAFETY: numbers only, of this thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        loop {
            let (came, packet) = match packets.recv_timeout(Duration::from_millis(100)) {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::SeqCst) => continue,
                Err(_) => return,
            };
            let due = came + Duration::from_nanos(self.delay_ns.load(Ordering::SeqCst));
            while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                if self.stop.load(Ordering::SeqCst) {
                    return;
                }
                // Not asleep for long: somebody may want to stop.
                match left.checked_sub(SPIN) {
                    Some(sleep) => std::thread::sleep(sleep.min(Duration::from_millis(100))),
                    None => std::hint::spin_loop(),
                }
            }
            // One that is down takes nothing. (Whoever gets it may answer before `write` is back.)
            self.account.given(direction, &packet, Instant::now());
            let _ = tun.write_all(&packet);
        }
    }
}

/// This thread gets a CPU when it wakes up, before everybody else here. Without the right to it the link is less exact.
fn at_once() {
    let first = libc::sched_param { sched_priority: 2 };
    // SAFETY: a number, which lives as long as the call; of this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
}

/// A TCP segment (RFC 9293, section 3.1) in IPv4 (RFC 791, section 3.1).
struct Segment<'a> {
    /// Whose it is, and to whom it goes.
    ports: [u16; 2],
    data: &'a [u8],
}

fn segment(packet: &[u8]) -> Option<Segment<'_>> {
    if packet.len() < 40 || packet[0] >> 4 != 4 || packet[9] != 6 {
        return None;
    }
    let header = usize::from(packet[0] & 15) * 4;
    let port = |at: usize| Some(u16::from_be_bytes(*packet.get(header + at..)?.first_chunk()?));
    let begin = header + usize::from(packet.get(header + 12)? >> 4) * 4;
    Some(Segment { ports: [port(0)?, port(2)?], data: packet.get(begin..)? })
}

/// What a segment carries; nothing of anything else.
fn data(packet: &[u8]) -> &[u8] {
    segment(packet).map_or(&[], |segment| segment.data)
}

fn again(file: &File) -> File {
    file.try_clone().unwrap()
}
