//! Connection to a guest: its socket, from connecting to the end.
//!
//! *In*: bytes of the guest. *Out*: its records to the target, and acknowledgements to the guest in the order
//! of the records. *Invariant*: that of [`super`].
//!
//! A record that the target refuses for now makes the guest send all again from there, so no record overtakes
//! another. One that it refuses for good is counted and acknowledged: the guest would send it again and again.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Ack, DeliveryHandle};
use blkkin_guest_port::{Received, Receiver, ReceiverStats};
use blkkin_qemu::Machine;
use blkkin_tracer::clock;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockOffset, MonotonicNs, clamp};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::{BootId, Pid, Source};
use blkkin_wire::v1;
use blkkin_wire::virtual_machine::{HostProcess, VirtualMachineEvent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use tracing::{info, warn};

use crate::filter::virtual_machines::is_named;
use crate::log::Limiter;
use crate::service::peer_credentials;

use super::{BYTES_PER_SECOND, Hub, LOOK_INTERVAL, REFUSED_PAUSE, WINDOW_BYTES};

/// Wait for bytes of the guest while records are in flight, for which the cluster may have an answer meanwhile. It
/// doubles up to [`IDLE_WAIT`] while there is neither.
const BUSY_WAIT: Duration = Duration::from_millis(10);
/// Longest wait for bytes of the guest, and for a stop.
const IDLE_WAIT: Duration = Duration::from_millis(200);
/// Silence after which a guest without records in flight is asked again to resume. It doubles up to the maximum
/// with each request, so that one that answers slowly is not interrupted for ever.
const SILENCE: Duration = Duration::from_secs(1);
const SILENCE_MAX: Duration = Duration::from_secs(8);
/// Least pause between two pings, each after a record of the guest: it looks at its port again within 5 ms then.
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a ping is not waited for any more.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Time by which a guest may be ahead of its rate: 1.6 MiB.
const BURST: Duration = Duration::from_millis(100);
/// Maximum number of requests to resume of a connection.
const REQUESTS_OF_CONNECTION: u64 = 1 << 20;
/// Pause after the cluster has refused a record for now.
const RESUME_PAUSE: Duration = Duration::from_secs(1);

/// Reason why a connection ended.
enum End {
    /// QEMU or this agent ended it.
    Closed(Option<io::Error>),
    /// The guest sent something that is refused.
    Refused(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Closed(Some(error))
    }
}

/// Limits of the log lines about one guest.
struct GuestLines {
    /// Connections, each with its end: a connection without a line has none for its end either.
    connections: Limiter,
    /// Failures to connect.
    no_connection: Limiter,
    /// Failures to send its records.
    not_sent: Limiter,
}

/// Connects to a guest again and again, until its socket is gone or the agent stops.
pub(super) fn serve(path: &Path, hub: &Hub) {
    let [connections, no_connection, not_sent] = ["connections", "failures", "failures"].map(Limiter::new);
    let lines = GuestLines { connections, no_connection, not_sent };
    let mut problem = None;
    // Socket of another virtual machine than those that are received.
    let mut other = None;
    while path.exists() && !hub.stop.is_set() {
        let identity = fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if identity.is_some() && identity == other {
            hub.stop.wait(LOOK_INTERVAL);
            continue;
        }
        let pause = match connect(path) {
            Ok(stream) => {
                problem = None;
                match machine_to_receive(path, &stream, hub) {
                    Some(machine) => connected(path, stream, machine, hub, &lines),
                    None => {
                        other = identity;
                        LOOK_INTERVAL
                    }
                }
            }
            Err(error) => {
                let error = error.to_string();
                if problem.as_ref() != Some(&error)
                    && let Some(suppressed) = lines.no_connection.pass()
                {
                    warn!("cannot connect to the guest of {}: {error}{suppressed}", path.display());
                    problem = Some(error);
                }
                LOOK_INTERVAL
            }
        };
        if hub.stop.wait(pause) {
            return;
        }
    }
}

/// Connects to a socket without waiting for the process that listens: QEMU accepts one client.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(socket.into()),
        Err(Errno::AGAIN) => Err(io::Error::other("other processes wait for it, and one may read it")),
        Err(error) => Err(error.into()),
    }
}

/// Returns the virtual machine of a connection, none if it is not known. None if another one is received.
#[allow(clippy::option_option, reason = "a virtual machine that is not known is received if all are")]
fn machine_to_receive(path: &Path, stream: &UnixStream, hub: &Hub) -> Option<Option<Machine>> {
    let machine = machine_of(stream);
    if hub.machines.is_empty() {
        return Some(machine);
    }
    match machine {
        Some(machine) if hub.machines.iter().any(|wanted| is_named(&machine, wanted)) => Some(Some(machine)),
        Some(_) => None,
        None => {
            warn!("guest of {} is not received: its virtual machine is not known (--vm)", path.display());
            None
        }
    }
}

/// Serves a connection to its end; returns the pause before the next one.
fn connected(
    path: &Path,
    stream: UnixStream,
    machine: Option<Machine>,
    hub: &Hub,
    lines: &GuestLines,
) -> Duration {
    hub.stats.connections.fetch_add(1, Relaxed);
    hub.stats.connected.fetch_add(1, Relaxed);
    let mut connection = Connection::new(path, stream, machine.as_ref(), hub, lines);
    let end = connection.run().err().unwrap_or(End::Closed(None));
    let is_logged = connection.is_logged;
    drop(connection);
    hub.claims().release(path);
    hub.stats.connected.fetch_sub(1, Relaxed);
    if !is_logged {
        lines.connections.suppress();
    }
    match end {
        End::Closed(error) => {
            if is_logged {
                let error = error.map(|error| format!(": {error}")).unwrap_or_default();
                info!("guest of {} is disconnected{error}", path.display());
            }
            LOOK_INTERVAL
        }
        End::Refused(why) => {
            hub.stats.refused.fetch_add(1, Relaxed);
            warn!("guest of {} is refused: {why}", path.display());
            REFUSED_PAUSE
        }
    }
}

/// Returns the virtual machine whose QEMU process listens on the socket. QEMU begins to listen again on one that libvirt
/// opened and handed over. None if another process listens.
fn machine_of(stream: &UnixStream) -> Option<Machine> {
    blkkin_qemu::machine_of(Path::new("/"), listening_process(stream)?)
}

/// Returns the process that listens at the other end; none if it is in a PID namespace that this one does not see.
fn listening_process(stream: &UnixStream) -> Option<u32> {
    let credentials = peer_credentials(stream)?;
    u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0)
}

/// Returns the event that a record of the guest gets, but for its time and the clocks.
fn node_event(machine: &Machine, host: Source) -> VirtualMachineEvent {
    let [name, uuid] = [&machine.name, &machine.uuid].map(|text| text.as_deref().unwrap_or_default());
    let process = HostProcess { node: host.node, boot: host.boot, pid: Pid(machine.pid), clock: None };
    VirtualMachineEvent {
        host: Some(process.into()),
        ..VirtualMachineEvent::bare(MonotonicNs(0), VirtualMachineEvent::NODE, name, uuid)
    }
}

/// Record between the guest and the cluster.
struct InFlight {
    record: Received,
    events: u64,
    /// Handle of the producer; none until it has the record.
    handle: Option<DeliveryHandle>,
}

struct Connection<'a> {
    path: &'a Path,
    stream: UnixStream,
    lines: &'a GuestLines,
    /// The log has a line about it.
    is_logged: bool,
    /// Names the guest's virtual machine in the log.
    machine_name: Option<&'a str>,
    /// Names the guest's virtual machine.
    node_event: Option<VirtualMachineEvent>,
    /// Boot of the guest whose clock is known, and this host's clock minus that one.
    guest_clock: Option<(BootId, ClockOffset)>,
    /// Number of pings.
    pings: u64,
    /// Time before the last one.
    pinged: Option<MonotonicNs>,
    is_answered: bool,
    hub: &'a Hub,
    receiver: Receiver,
    /// Oldest first.
    in_flight: VecDeque<InFlight>,
    bytes: usize,
    output: Vec<u8>,
    reported: ReceiverStats,
    /// Time by which the guest would have sent its bytes at [`BYTES_PER_SECOND`].
    paid_until: Instant,
    /// End of the pause after a record that the cluster refused for now, or that could not be handed over.
    paused_until: Option<Instant>,
    /// Time of the guest's last bytes, or of the last request after them.
    silent_since: Instant,
    /// Silence after which it is asked again.
    silence: Duration,
    /// Wait while records are in flight.
    wait: Duration,
    buffer: Vec<u8>,
}

impl<'a> Connection<'a> {
    fn new(
        path: &'a Path,
        stream: UnixStream,
        machine: Option<&'a Machine>,
        hub: &'a Hub,
        lines: &'a GuestLines,
    ) -> Connection<'a> {
        // The guest takes numbers that are near each other for those of one process.
        let receiver = Receiver::new(hub.next_request.fetch_add(REQUESTS_OF_CONNECTION, Relaxed));
        Connection {
            path,
            stream,
            lines,
            is_logged: false,
            machine_name: machine.and_then(|machine| machine.name.as_deref()),
            node_event: machine.map(|machine| node_event(machine, hub.source)),
            guest_clock: None,
            pings: 0,
            pinged: None,
            is_answered: false,
            hub,
            receiver,
            in_flight: VecDeque::new(),
            bytes: 0,
            output: Vec::new(),
            reported: ReceiverStats::default(),
            paid_until: Instant::now(),
            paused_until: None,
            silent_since: Instant::now(),
            silence: SILENCE,
            wait: BUSY_WAIT,
            buffer: vec![0; READ_BYTES],
        }
    }

    /// Serves the guest until it or the agent ends.
    fn run(&mut self) -> Result<(), End> {
        self.stream.set_nonblocking(true)?;
        while !self.hub.stop.is_set() {
            self.log();
            self.take_acks();
            self.hand_over();
            self.ask_if_silent();
            self.write()?;
            if self.has_room(Instant::now()) {
                let is_idle = self.in_flight.is_empty() && self.output.is_empty();
                self.read_within(if is_idle { IDLE_WAIT } else { self.wait })?;
            } else {
                std::thread::sleep(self.wait);
            }
            self.wait = (self.wait * 2).min(IDLE_WAIT);
        }
        Ok(())
    }

    /// Logs the connection once, as soon as the limit permits.
    fn log(&mut self) {
        if self.is_logged {
            return;
        }
        if let Some(suppressed) = self.lines.connections.pass_if_due() {
            let name =
                self.machine_name.map(|name| format!(": virtual machine `{name}`")).unwrap_or_default();
            info!("guest of {} is connected{name}{suppressed}", self.path.display());
            self.is_logged = true;
        }
    }

    /// Returns whether more bytes of the guest may be taken now.
    fn has_room(&self, now: Instant) -> bool {
        let is_within_rate = self.paid_until <= now + BURST;
        self.bytes < WINDOW_BYTES && is_within_rate && !self.is_paused(now)
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|end| now < end)
    }

    /// Waits up to `wait` for bytes of the guest, and takes them.
    fn read_within(&mut self, wait: Duration) -> Result<(), End> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Err(End::Closed(None)),
            Ok(count) => {
                let time = Duration::from_secs_f64(count as f64 / BYTES_PER_SECOND as f64);
                let now = Instant::now();
                self.paid_until = self.paid_until.max(now) + time;
                self.silent_since = now;
                self.wait = BUSY_WAIT;
                let buffer = std::mem::take(&mut self.buffer);
                let received = self.receive(&buffer[..count], clock::now());
                self.buffer = buffer;
                received.map_err(End::Refused)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks a guest that has just sent a record for its time.
    fn ping(&mut self) {
        let pause = if self.is_answered { PING_INTERVAL } else { PING_TIMEOUT };
        let now = clock::now();
        let is_due = self.pinged.is_none_or(|last| u128::from(now.since(last).0) >= pause.as_nanos());
        if is_due && self.node_event.is_some() {
            self.pings += 1;
            self.receiver.ping(self.pings);
            (self.pinged, self.is_answered) = (Some(now), false);
        }
    }

    /// Bounds the difference of the clocks by an answer that was read before `now`.
    fn take_pong(&mut self, now: MonotonicNs) {
        let (Some(pong), Some(before)) = (self.receiver.take_pong(), self.pinged) else { return };
        if pong.number != self.pings {
            return;
        }
        self.is_answered = true;
        let (boot, at) = (BootId(pong.guest.boot), MonotonicNs(pong.guest.time));
        let minus = |host: MonotonicNs| clamp(i128::from(host.0) - i128::from(at.0));
        let newer = ClockOffset { at, low: minus(before), high: minus(now) };
        let known = self.guest_clock.filter(|(known, _)| *known == boot);
        self.guest_clock = Some((boot, known.map_or(newer, |(_, known)| known.narrowed_by(newer))));
    }

    /// Returns the event that names the virtual machine in a batch.
    fn node_event_of(&self, batch: &EventBatch) -> Option<VirtualMachineEvent> {
        let mut event = VirtualMachineEvent { time: first_time(batch)?, ..self.node_event.clone()? };
        if let Some(host) = &mut event.host {
            let clock = self.guest_clock.filter(|(boot, _)| *boot == batch.source.boot);
            host.clock = clock.map(|(_, clock)| clock);
        }
        Some(event)
    }

    /// Takes the records in these bytes, which were there at `now`, or returns why they are refused.
    fn receive(&mut self, bytes: &[u8], now: MonotonicNs) -> Result<(), String> {
        let mut records = Vec::new();
        self.receiver.receive(bytes, |record| records.push(record));
        self.take_pong(now);
        if !records.is_empty() {
            self.ping();
        }
        self.report_stats();
        for mut record in records {
            let decoded =
                v1::decode(&record.bytes).map_err(|error| format!("a record is damaged: {error}"))?;
            let batch = decoded.batch;
            self.hub.claims().claim(batch.source.node, self.path)?;
            if names_its_own_machine(&batch) {
                return Err("it names its own virtual machine, which only its host knows".to_owned());
            }
            let mut events = batch.events.len() as u64;
            if let Some(event) = self.node_event_of(&batch) {
                v1::append_virtual_machine(&mut record.bytes, &event);
                events += 1;
            }
            self.bytes += record.bytes.len();
            self.silence = SILENCE;
            self.in_flight.push_back(InFlight { record, events, handle: None });
        }
        Ok(())
    }

    /// Hands records to the producer, in order, while it has room.
    fn hand_over(&mut self) {
        if self.is_paused(Instant::now()) {
            return;
        }
        for one in self.in_flight.iter_mut().filter(|one| one.handle.is_none()) {
            match self.hub.send(&one.record.bytes, one.events) {
                Ok(Some(handle)) => one.handle = Some(handle),
                Ok(None) => return,
                Err(error) => {
                    if let Some(suppressed) = self.lines.not_sent.pass() {
                        let path = self.path.display();
                        warn!("records of the guest of {path} are not sent: {error}{suppressed}");
                    }
                    self.paused_until = Some(Instant::now() + RESUME_PAUSE);
                    return;
                }
            }
        }
    }

    /// Takes the cluster's answers, and acknowledges the records before the first that has none.
    fn take_acks(&mut self) {
        self.hub.collect_outcomes();
        let mut last = None;
        while let Some(first) = self.in_flight.front() {
            let outcome = first.handle.and_then(|handle| self.hub.take_outcome(handle));
            let counter = match outcome {
                None => break,
                Some(Ack::Retriable) => return self.resume(last),
                Some(Ack::Delivered) => &self.hub.stats.delivered,
                Some(Ack::Rejected) => &self.hub.stats.failed,
            };
            counter.fetch_add(first.events, Relaxed);
            last = Some(first.record.number);
            self.bytes -= first.record.bytes.len();
            self.in_flight.pop_front();
        }
        if let Some(number) = last {
            self.receiver.acknowledge(number);
            self.wait = BUSY_WAIT;
        }
    }

    /// Has the guest send again what the cluster refused for now, and all behind it.
    fn resume(&mut self, acknowledged: Option<u64>) {
        acknowledged.into_iter().for_each(|number| self.receiver.acknowledge(number));
        self.forget_all();
        self.receiver.resume();
        self.paused_until = Some(Instant::now() + RESUME_PAUSE);
    }

    fn forget_all(&mut self) {
        self.bytes = 0;
        self.in_flight.drain(..).filter_map(|one| one.handle).for_each(|handle| self.hub.forget(handle));
    }

    /// Asks a silent guest again to resume, because it may have missed the request or have a new agent.
    fn ask_if_silent(&mut self) {
        // Records in flight would be sent again.
        if self.in_flight.is_empty() && self.silent_since.elapsed() >= self.silence {
            self.receiver.resume();
            self.silent_since = Instant::now();
            self.silence = (self.silence * 2).min(SILENCE_MAX);
        }
    }

    fn write(&mut self) -> io::Result<()> {
        self.output.extend(self.receiver.take_output());
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn report_stats(&mut self) {
        let stats = self.receiver.stats();
        self.hub.stats.missing.fetch_add(stats.missing.wrapping_sub(self.reported.missing), Relaxed);
        let skipped = stats.skipped_bytes - self.reported.skipped_bytes;
        self.hub.stats.skipped_bytes.fetch_add(skipped, Relaxed);
        self.reported = stats;
    }
}

fn names_its_own_machine(batch: &EventBatch) -> bool {
    let of_node = |event: &LayerEvent| matches!(event, LayerEvent::VirtualMachine(one) if one.is_of_node());
    batch.events.iter().any(of_node)
}

/// Returns the earliest time of a batch's events.
fn first_time(batch: &EventBatch) -> Option<MonotonicNs> {
    batch.events.iter().map(LayerEvent::time).min()
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.forget_all();
    }
}
