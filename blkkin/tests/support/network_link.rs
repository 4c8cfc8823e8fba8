//! Two nodes on one kernel, and a network link between them that delays, drops or is cut.
//!
//! Each node has its own network namespace, machine-id and LTTng folders. The link is a TUN device
//! in each namespace, connected by threads of this process. So it needs no queueing discipline
//! (netem) of the kernel, and it knows the real delay of each packet and whether it was dropped.
//! Dropping the link ends both nodes and what runs on them.

#[path = "network_link/delays.rs"]
mod delays;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::broker::child::{KillOnDrop, end_with_test};
use crate::support::live::eventually;
use crate::support::tools::{capture, tool};

use delays::RequestDelays;

/// Addresses of the nodes, in a range for documentation (RFC 5737).
pub(crate) const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// Machine-ids of the nodes.
pub(crate) const MACHINE_IDS: [u128; 2] = [0xa, 0xb];
/// Network device at each end.
const DEVICE: &str = "link0";
/// Script that makes a node of new namespaces. LTTng daemons of the machine and of the node do not
/// find each other.
const BOOT: &str = "mount --bind \"$1\" /etc/machine-id && mkdir -p /run/lttng && mount -t tmpfs tmpfs /run/lttng && \
    mount -t tmpfs tmpfs /dev/shm && exec sleep 100000";
/// Limit of packets in flight in one direction.
const PACKETS: usize = 4_096;
/// Last part of a delay, which is not slept because a sleep ends late.
const SPIN: Duration = Duration::from_micros(120);
/// NBD's request message (doc/proto.md, "Request message"): its length, and the first bytes of a
/// read.
const REQUEST: usize = 28;
const READ: [u8; 8] = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0];
/// ioctl and flags of include/uapi/linux/if_tun.h: TUNSETIFF, IFF_TUN | IFF_NO_PI.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const FLAGS: u16 = 0x0001 | 0x1000;

/// Namespaces, held by a process that sleeps in them.
pub(crate) struct Node {
    sleeper: KillOnDrop,
    /// File with its machine-id.
    _id: tempfile::NamedTempFile,
}

/// Both nodes and the connection between them. Direction 0 is from the first node to the second.
pub(crate) struct NetworkLink {
    pub(crate) nodes: [Node; 2],
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    stop: AtomicBool,
    delay_ns: AtomicU64,
    /// Every n-th segment of the first node with a read request is dropped; 0 drops none.
    read_drop_interval: AtomicU64,
    reads: AtomicU64,
    /// Offsets of the dropped read requests, once for each drop.
    dropped_reads: Mutex<Vec<u64>>,
    /// Set while all segments with data of the second node are dropped.
    drops_replies: AtomicBool,
    delays: RequestDelays,
}

impl Node {
    fn start(number: u128) -> Result<Node, String> {
        let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        fs::write(file.path(), format!("{number:032x}\n")).unwrap();
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--mount", "sh", "-c", BOOT, "boot"]).arg(file.path()).stdin(Stdio::null());
        let sleeper = end_with_test(&mut unshare).spawn().map_err(|error| format!("unshare: {error}"))?;
        let node = Node { sleeper: KillOnDrop(sleeper), _id: file };
        let comm = format!("/proc/{}/comm", node.sleeper.0.id());
        let started = || fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == "sleep");
        eventually(started).then_some(node).ok_or_else(|| "a node does not start".to_owned())
    }

    /// Returns a command that runs `program` on the node.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = tool("nsenter");
        command.args(["--target", &self.sleeper.0.id().to_string(), "--net", "--mount", program]);
        command
    }

    /// Returns a command that runs `program` with the node's network, and otherwise on this machine.
    pub(crate) fn network_command(&self, program: &str) -> Command {
        let mut command = tool("nsenter");
        command.args(["--target", &self.sleeper.0.id().to_string(), "--net", program]);
        command
    }

    /// Returns such a command with a real-time priority. Both nodes, a broker and all consumers
    /// share this machine's CPUs, and waiting for a CPU would count as network delay.
    pub(crate) fn realtime_command(&self, program: &str) -> Command {
        let mut command = self.command("chrt");
        command.args(["--fifo", "1", program]);
        command
    }

    /// Returns the service's command in the node's mount namespace, but with this machine's
    /// network.
    pub(crate) fn enter_mounts(&self, service: &Command) -> Command {
        let mut command = tool("nsenter");
        command.args(["--target", &self.sleeper.0.id().to_string(), "--mount"]);
        command.arg(service.get_program()).args(service.get_args());
        command
    }

    /// Runs a command on the node and returns its stdout.
    pub(crate) fn output(&self, args: &[&str]) -> Result<String, String> {
        capture(self.command(args[0]).args(&args[1..]))
    }

    /// Returns the kernel's count of retransmitted TCP segments on the node (/proc/net/snmp,
    /// RetransSegs).
    pub(crate) fn retransmitted_segments(&self) -> u64 {
        let snmp = fs::read_to_string(format!("/proc/{}/net/snmp", self.sleeper.0.id())).unwrap();
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let mut both = names.split(' ').zip(values.split(' '));
        both.find(|(name, _)| *name == "RetransSegs").unwrap().1.parse().unwrap()
    }

    /// Creates a TUN device in the node's network namespace.
    fn tun(&self, address: &str) -> Result<File, String> {
        let namespace = format!("/proc/{}/ns/net", self.sleeper.0.id());
        let enter = move || -> std::io::Result<File> {
            let namespace = File::open(namespace)?;
            // SAFETY: passes numbers only; only this thread enters the namespace, and it ends.
            if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let tun = File::options().read(true).write(true).open("/dev/net/tun")?;
            // struct ifreq: a name of 16 bytes, then a union of 24 bytes that begins with the
            // flags.
            let mut request = [0_u8; 40];
            request[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
            request[16..18].copy_from_slice(&FLAGS.to_ne_bytes());
            // SAFETY: the request has the size of a struct ifreq, and outlives the call.
            if unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(tun)
        };
        let tun =
            std::thread::spawn(enter).join().unwrap().map_err(|error| format!("no TUN device: {error}"))?;
        self.output(&["ip", "link", "set", "lo", "up"])?;
        self.output(&["ip", "addr", "add", &format!("{address}/24"), "dev", DEVICE])?;
        self.output(&["ip", "link", "set", DEVICE, "up"])?;
        Ok(tun)
    }
}

impl NetworkLink {
    /// Creates two nodes and a link without delay, or returns why it cannot.
    pub(crate) fn new() -> Result<NetworkLink, String> {
        let nodes = [Node::start(MACHINE_IDS[0])?, Node::start(MACHINE_IDS[1])?];
        let tuns = [nodes[0].tun(ADDRESSES[0])?, nodes[1].tun(ADDRESSES[1])?];
        let state = Arc::new(State::default());
        let mut threads = Vec::new();
        for direction in [0, 1] {
            let (from, to) = (duplicate(&tuns[direction]), duplicate(&tuns[1 - direction]));
            let (sender, receiver) = sync_channel(PACKETS);
            let (reads, writes) = (Arc::clone(&state), Arc::clone(&state));
            threads.push(std::thread::spawn(move || reads.read(direction, from, sender)));
            threads.push(std::thread::spawn(move || writes.write(direction, to, receiver)));
        }
        Ok(NetworkLink { nodes, state, threads })
    }

    /// Delays each packet by this time from now on, in each direction.
    pub(crate) fn delay(&self, each_way: Duration) {
        self.state.delay_ns.store(each_way.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Returns the median real delay of a request, both directions together, since the previous
    /// call.
    pub(crate) fn median_delay(&self) -> Duration {
        self.state.delays.median()
    }

    /// Drops every n-th segment of the first node with a read request from now on; 0 drops none.
    pub(crate) fn drop_reads(&self, one_in: u64) {
        self.state.read_drop_interval.store(one_in, Ordering::SeqCst);
    }

    /// Returns the offsets of the dropped read requests, once for each drop.
    pub(crate) fn dropped_reads(&self) -> Vec<u64> {
        self.state.dropped_reads.lock().unwrap().clone()
    }

    /// Drops all data that the second node sends from now on; bare acknowledgements pass.
    pub(crate) fn drop_replies(&self) {
        self.state.drops_replies.store(true, Ordering::SeqCst);
    }

    /// Takes the first node's device down: packets in flight are lost without notice to either end.
    pub(crate) fn cut(&self) {
        self.nodes[0].output(&["ip", "link", "set", DEVICE, "down"]).unwrap();
    }
}

impl Drop for NetworkLink {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

impl State {
    fn read(&self, direction: usize, mut tun: File, out: SyncSender<(Instant, Vec<u8>)>) {
        set_realtime();
        let mut buffer = vec![0; 65_536];
        while !self.stop.load(Ordering::SeqCst) {
            let mut poll = libc::pollfd { fd: tun.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: passes one pollfd, which outlives the call.
            if unsafe { libc::poll(&raw mut poll, 1, 100) } != 1 {
                continue;
            }
            // A device that is down has nothing to read.
            let Ok(bytes) = tun.read(&mut buffer) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let received = Instant::now();
            self.delays.received(direction, &buffer[..bytes], received);
            if !self.is_dropped(direction, &buffer[..bytes])
                && out.send((received, buffer[..bytes].to_vec())).is_err()
            {
                return;
            }
        }
    }

    fn is_dropped(&self, direction: usize, packet: &[u8]) -> bool {
        let data = data(packet);
        if direction == 1 {
            return !data.is_empty() && self.drops_replies.load(Ordering::SeqCst);
        }
        let one_in = self.read_drop_interval.load(Ordering::SeqCst);
        if one_in == 0 || data.len() != REQUEST || !data.starts_with(&READ) {
            return false;
        }
        let is_dropped = (self.reads.fetch_add(1, Ordering::SeqCst) + 1).is_multiple_of(one_in);
        if is_dropped {
            self.dropped_reads.lock().unwrap().push(u64::from_be_bytes(data[16..24].try_into().unwrap()));
        }
        is_dropped
    }

    fn write(&self, direction: usize, mut tun: File, packets: Receiver<(Instant, Vec<u8>)>) {
        set_realtime();
        // SAFETY: passes numbers only; the setting is of this thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        loop {
            let (received, packet) = match packets.recv_timeout(Duration::from_millis(100)) {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::SeqCst) => continue,
                Err(_) => return,
            };
            let due = received + Duration::from_nanos(self.delay_ns.load(Ordering::SeqCst));
            while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                if self.stop.load(Ordering::SeqCst) {
                    return;
                }
                // Sleeps only briefly, so that a stop takes effect soon.
                match left.checked_sub(SPIN) {
                    Some(sleep) => std::thread::sleep(sleep.min(Duration::from_millis(100))),
                    None => std::hint::spin_loop(),
                }
            }
            // A device that is down accepts nothing. (A receiver may reply before `write` returns.)
            self.delays.delivered(direction, &packet, Instant::now());
            let _ = tun.write_all(&packet);
        }
    }
}

/// Gives this thread a real-time priority, so that it runs at once when it wakes up. Without the
/// right to that the link's delay is less exact.
fn set_realtime() {
    let first = libc::sched_param { sched_priority: 2 };
    // SAFETY: the parameter outlives the call; the setting is of this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
}

/// A TCP segment (RFC 9293, section 3.1) in IPv4 (RFC 791, section 3.1).
struct Segment<'a> {
    /// Source and destination port.
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

/// Returns the data of a TCP segment; empty for any other packet.
fn data(packet: &[u8]) -> &[u8] {
    segment(packet).map_or(&[], |segment| segment.data)
}

fn duplicate(file: &File) -> File {
    file.try_clone().unwrap()
}
