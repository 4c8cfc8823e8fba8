//! Sends records to the host, from inside a virtual machine.
//!
//! *In*: records in order, and a virtio-serial port. *Out*: the records, once each has been acknowledged by
//! the host's agent, which sends them to Kafka (`guests.rs`); answers to that agent's pings. *Invariant*: that of
//! [`blkkin_guest_port::Sender`]. While the host's end is away, up to [`BUFFER_BYTES`] wait here; then the bus
//! fills, then the rings, and the kernel side counts what it drops. Another process of the host is sent all names
//! again ([`NameStore`]): a task, file or device is reported once, maybe to a former one.
//!
//! The driver (drivers/char/virtio_console.c) returns 0 bytes to a reader while no process of the host is
//! connected, and refuses to write. A process that connects later finds none of what was written before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blkkin_bus::Next;
use blkkin_bus::kafka::{BatcherConfig, DeliveryStats, EventBatcher, Record};
use blkkin_guest_port::{GuestTime, Sender};
use blkkin_tracer::{StopSignal, clock};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::BootId;
use tracing::{info, warn};

use super::event_input::EventInput;
use super::metrics::AgentMetrics;
use super::name_store::NameStore;
use super::send_totals::{DRAIN_TIMEOUT, SendTotals};
use crate::error::CliError;

/// Maximum bytes of records that the host has not acknowledged.
const BUFFER_BYTES: usize = 16 << 20;
/// Bytes of one read: the host sends 28 for each acknowledgement.
const READ_BYTES: usize = 4096;
/// Interval of looks at the port while something waits for the host.
const BUSY_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of looks at the port otherwise.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);

/// An open port.
#[derive(Debug)]
pub(super) struct Port {
    file: File,
    path: PathBuf,
}

impl Port {
    /// Opens a port by its path, or by its name if there is no udev, which makes `/dev/virtio-ports`.
    pub(super) fn open(path: &Path) -> Result<Port, CliError> {
        let device = if path.exists() { None } else { device_of(path) };
        let device = device.unwrap_or_else(|| path.to_owned());
        let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&device);
        let file = open.map_err(|error| {
            let what = format!("cannot open the port {}", path.display());
            let remedy = "start QEMU with -device virtio-serial -device virtserialport,name=org.blkkin.0,chardev=… \
                (docs/virtual-machines.md), and no second agent";
            CliError::cannot_trace(what, error, remedy)
        })?;
        Ok(Port { file, path: path.to_owned() })
    }

    /// Returns the port for messages.
    pub(super) fn name(&self) -> String {
        format!("the host by {}", self.path.display())
    }
}

/// Finds the device of a port by the name that QEMU gave it, which is the last part of the path.
fn device_of(path: &Path) -> Option<PathBuf> {
    let wanted = path.file_name()?.to_str()?;
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?.flatten();
    let mut named = ports.filter(|port| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim_end() == wanted)
    });
    Some(Path::new("/dev").join(named.next()?.file_name()))
}

/// Sends until the tracer ends, and waits for the host to acknowledge.
pub(super) fn run(
    mut batches: EventInput,
    port: Port,
    stop: &StopSignal,
    metrics: &AgentMetrics,
) -> Result<SendTotals, CliError> {
    let mut link = Link::new(port, metrics);
    let (mut totals, mut batcher) = (SendTotals::default(), EventBatcher::new(BatcherConfig::default(), 0));
    let mut names = SentNames::default();
    loop {
        link.exchange();
        if link.sender.take_new_host()
            && let Some(batch) = names.batch()
        {
            let batched = batcher.add(batch, Instant::now());
            totals.oversize += batched.oversize;
            batched.records.iter().for_each(|record| link.send(record, stop, &mut totals));
        }
        let batched = match batches.next(batcher.due_in(Instant::now()).min(link.interval()), metrics) {
            Next::Item(batch) => {
                link.boot = Some(batch.source.boot);
                names.observe(&batch);
                batcher.add(batch, Instant::now())
            }
            Next::Timeout => batcher.due(Instant::now()),
            Next::Closed => break,
        };
        totals.oversize += batched.oversize;
        for record in &batched.records {
            link.send(record, stop, &mut totals);
        }
    }
    let last = batcher.take();
    totals.oversize += last.oversize;
    for record in &last.records {
        link.send(record, stop, &mut totals);
    }
    link.drain();
    totals.deliveries = link.deliveries();
    totals.unanswered = link.sender.stats().waiting;
    Ok(totals)
}

/// Names that were sent, for another process of the host: it has none of the batches that a former one acknowledged.
#[derive(Default)]
struct SentNames {
    names: NameStore,
    /// Last batch, without its events.
    last: Option<EventBatch>,
}

impl SentNames {
    fn observe(&mut self, batch: &EventBatch) {
        let names = batch.events.iter().filter(|event| event.is_name());
        names.cloned().for_each(|name| self.names.add(name, true));
        let EventBatch { source, sequence, anchor, watermark, ref stats, .. } = *batch;
        self.last = Some(EventBatch {
            source,
            sequence,
            anchor,
            watermark,
            stats: stats.clone(),
            ..EventBatch::tick()
        });
    }

    /// Returns a batch with all names; none before the first batch. The batcher numbers it.
    fn batch(&mut self) -> Option<EventBatch> {
        let last = self.last.clone()?;
        Some(EventBatch { events: self.names.take_for_dump(), ..last })
    }
}

/// The port and the guest's end of its stream.
struct Link<'a> {
    port: Port,
    /// Boot of the events; none before the first batch.
    boot: Option<BootId>,
    sender: Sender,
    had_host: bool,
    waited: Duration,
    metrics: &'a AgentMetrics,
}

impl<'a> Link<'a> {
    fn new(port: Port, metrics: &'a AgentMetrics) -> Link<'a> {
        let sender = Sender::new(BUFFER_BYTES);
        Link { port, boot: None, sender, had_host: false, waited: Duration::ZERO, metrics }
    }

    /// Adds a record; waits while there is no room, until `stop`.
    fn send(&mut self, record: &Record, stop: &StopSignal, totals: &mut SendTotals) {
        while !self.sender.add(&record.bytes, record.events) {
            if stop.is_set() {
                totals.left += record.events;
                return;
            }
            // Waiting for the host's agent is healthy.
            self.metrics.heartbeat.beat();
            std::thread::sleep(BUSY_INTERVAL);
            self.waited += BUSY_INTERVAL;
            self.exchange();
        }
        self.exchange();
    }

    /// Waits until the host has acknowledged everything, for up to [`DRAIN_TIMEOUT`].
    fn drain(&mut self) {
        let start = Instant::now();
        while self.sender.stats().waiting > 0 && start.elapsed() < DRAIN_TIMEOUT {
            std::thread::sleep(BUSY_INTERVAL);
            self.exchange();
        }
    }

    /// Reads and writes what the port has and takes now.
    fn exchange(&mut self) {
        if let Err(error) = self.read().and_then(|()| self.write()) {
            self.sender.host_left();
            // Only a device that is gone fails in another way.
            if self.had_host {
                warn!("{}: {error}", self.port.name());
            }
        }
        let has_host = self.sender.has_host();
        if has_host != self.had_host {
            let state =
                if has_host { "the host's agent is reachable" } else { "the host's agent is unreachable" };
            info!("{}: {state}", self.port.name());
            self.had_host = has_host;
        }
        self.metrics.set_deliveries(self.deliveries());
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        loop {
            match self.port.file.read(&mut bytes) {
                Ok(0) => {
                    self.sender.host_left();
                    return Ok(());
                }
                Ok(count) => {
                    self.sender.receive(&bytes[..count]);
                    if let Some(boot) = self.boot.filter(|_| self.sender.has_ping()) {
                        self.sender.answer_ping(GuestTime { boot: boot.0, time: clock::now().0 });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        loop {
            let output = self.sender.output();
            if output.is_empty() {
                return Ok(());
            }
            match self.port.file.write(output) {
                Ok(count) => self.sender.wrote(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Time until the next look at the port.
    fn interval(&self) -> Duration {
        if self.sender.has_host() && self.sender.stats().waiting > 0 { BUSY_INTERVAL } else { IDLE_INTERVAL }
    }

    fn deliveries(&self) -> DeliveryStats {
        let stats = self.sender.stats();
        DeliveryStats {
            accepted: stats.acknowledged + stats.waiting,
            delivered: stats.acknowledged,
            waited_ns: self.waited.as_nanos() as u64,
            ..DeliveryStats::default()
        }
    }
}
