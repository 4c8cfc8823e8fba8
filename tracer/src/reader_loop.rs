//! The tracer's main loop: polls the rings on a timer and publishes event batches until it is
//! stopped.
//!
//! *In*: the rings, through [`RingReader`]. *Out*: [`EventBatch`]es with a watermark and the
//! source's counters, and a [`TraceSummary`] at the end. Each batch passes the stages in `STAGES`
//! before it is published.
//!
//! *Shutdown*: the loop detaches the hook that begins everything (sys_enter), then the other hooks,
//! and then drains the rings until the counters balance. Operations in progress can still end, and
//! no record in a ring is discarded.

mod stages;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aya::programs::Program;
use blkkin_bus::Publisher;
use blkkin_probe_abi::counters::{COUNTERS, USDT_DROPPED, USDT_FIRED};
use blkkin_probe_abi::settings::Program as KernelProgram;
use blkkin_wire::batch::{EventBatch, RecordStats, SourceStats};
use blkkin_wire::clock::{ClockAnchor, MonotonicNs};
use blkkin_wire::ids::DeviceId;
use blkkin_wire::in_flight::FinalState;

use crate::attach::attach_point::Attached;
use crate::attach::probes::{
    ASYNC_PROBES, DIRTY_PROBES, FAULT_PROBES, NBD_PROBES, PROBES, Probe, SLEEP_PROBES,
};
use crate::clock;
use crate::config::{POLL_INTERVAL, POLL_TARGET_BYTES};
use crate::enrich::contexts::config::ContextConfig;
use crate::enrich::contexts::process_events::ProcessWatcher;
use crate::enrich::contexts::tls_slots::TlsSlots;
use crate::enrich::devices::DeviceNames;
use crate::enrich::nbd::NbdStats;
use crate::enrich::usdt::events::UsdtStats;
use crate::enrich::virtual_machines::MachineWatcher;
use crate::error::TracerError;
use crate::heap;
use crate::load::Tracer;
use crate::read::rings::RingReader;
use crate::stats::source_stats::reconcile;
use crate::stop_signal::StopSignal;
use stages::{PendingBatch, STAGES};

/// Maximum number of events per batch. The bus holds up to 131,072 events (30 MB) in full batches.
const BATCH_EVENTS_MAX: usize = 2_048;
/// Batches between two reads of the recursion misses. Each read opens one file per program.
const RECURSION_MISSES_EVERY: u64 = 64;
/// Maximum age of the counters in a batch; the last batch has the final values. Reading them takes
/// one map lookup per program.
const STATS_MAX_AGE: Duration = Duration::from_millis(50);
/// Maximum wait for block I/O in flight when tracing stops.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(200);

/// Final counters and state of a trace.
#[derive(Clone, Debug, Default)]
pub struct TraceSummary {
    /// Final counters of the source.
    pub stats: SourceStats,
    /// I/O in flight at exit, and devices that changed.
    pub final_state: FinalState,
    /// Counters of NBD requests, if they were traced.
    pub nbd: Option<NbdStats>,
    /// Counters of USDT events, if they were traced.
    pub usdt: Option<UsdtStats>,
    /// Counters of dirty pages; all are 0 unless they were recorded.
    pub dirty: RecordStats,
}

impl Tracer {
    /// Publishes events until `stop` is set or the subscriber is gone. All programs are detached on
    /// return.
    pub fn run(
        mut self,
        events: Publisher<EventBatch>,
        stop: StopSignal,
    ) -> Result<TraceSummary, TracerError> {
        heap::trim();
        raise_priority();
        let watcher = match self.contexts.take() {
            Some((slots, config)) => Some(start_process_watcher(slots, config)?),
            None => None,
        };
        let mut event_loop = EventLoop {
            watcher,
            machines: self.machines.take(),
            rings: self.map_rings()?,
            devices: std::mem::take(&mut self.devices),
            tracer: self,
            events,
            anchor: clock::anchor(),
            sequence: 0,
            last_watermark: MonotonicNs::default(),
            expected_events: 0,
            closing: false,
            recursion_misses: 0,
            stats_cache: (SourceStats::default(), None),
        };
        let mut interval = *POLL_INTERVAL.start();
        while !stop.wait(interval) {
            match event_loop.poll_rings()? {
                Some(found) => interval = next_poll_interval(interval, found),
                None => break,
            }
        }
        event_loop.finish()
    }
}

/// Computes the next poll interval from the bytes found after this one. The interval at most
/// doubles per poll. It shrinks to the needed value in one step, so at most one poll of a burst
/// comes late.
fn next_poll_interval(interval: Duration, found: usize) -> Duration {
    let (shortest, longest) = (*POLL_INTERVAL.start(), *POLL_INTERVAL.end());
    let factor = (POLL_TARGET_BYTES as f64 / found.max(1) as f64).min(2.0);
    interval.max(shortest).mul_f64(factor).clamp(shortest, longest)
}

/// Raises the priority of the calling thread above ordinary work. The reader needs little CPU, but
/// the traced load on a busy machine would delay it by tens of milliseconds, during which rings
/// overflow. Without CAP_SYS_NICE the priority stays as it is; a thread that drops the capability
/// calls this before.
pub fn raise_priority() {
    const NICE: libc::c_int = -10;
    // SAFETY: no memory is passed; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

fn start_process_watcher(slots: TlsSlots, config: ContextConfig) -> Result<ProcessWatcher, TracerError> {
    ProcessWatcher::begin(slots, config)
        .map_err(|error| TracerError::System { path: "a thread".into(), reason: error.to_string() })
}

struct EventLoop {
    /// Watches for processes that may publish thread contexts.
    watcher: Option<ProcessWatcher>,
    /// Watches for QEMU's processes.
    machines: Option<MachineWatcher>,
    rings: RingReader,
    tracer: Tracer,
    events: Publisher<EventBatch>,
    anchor: ClockAnchor,
    devices: DeviceNames,
    sequence: u64,
    /// Watermark of the last batch.
    last_watermark: MonotonicNs,
    /// Event count of the last batch, as an estimate for the next.
    expected_events: usize,
    /// No further records will be read, so NBD requests in flight end without a reply.
    closing: bool,
    /// Recursion misses at the last read.
    recursion_misses: u64,
    /// Counters at the last read, and the time of that read.
    stats_cache: (SourceStats, Option<Instant>),
}

impl EventLoop {
    /// Polls and publishes once. Returns the new bytes of the fullest ring, or none if the
    /// subscriber is gone.
    fn poll_rings(&mut self) -> Result<Option<usize>, TracerError> {
        let found = self.rings.poll(clock::now());
        Ok(self.publish()?.then_some(found))
    }

    /// Reads the kernel's counts of skipped programs. A failed read keeps the last ones, which only
    /// grow.
    fn read_recursion_misses(&mut self) -> Result<(), TracerError> {
        let misses = self.tracer.recursion_misses();
        self.recursion_misses = misses.map_err(|reason| TracerError::SkippedRuns { reason })?;
        Ok(())
    }

    /// Publishes the events below the watermark. Returns false if the subscriber is gone.
    fn publish(&mut self) -> Result<bool, TracerError> {
        if self.sequence.is_multiple_of(RECURSION_MISSES_EVERY) {
            // The next read, or the last one, has what this one could not read.
            let _ = self.read_recursion_misses();
        }
        let dropped = match &self.rings.usdt {
            Some(_) => self.tracer.counters.of(KernelProgram::Usdt)?[USDT_DROPPED],
            None => 0,
        };
        let polled_at = clock::now();
        loop {
            let mut events = Vec::with_capacity(self.expected_events);
            let next = self.rings.merge(&mut events, BATCH_EVENTS_MAX);
            self.expected_events = events.len();
            let watermark = next.unwrap_or(self.rings.watermark());
            let mut batch = PendingBatch { events, watermark, polled_at, usdt_dropped: dropped };
            STAGES.iter().for_each(|stage| stage(self, &mut batch));
            self.last_watermark = watermark;
            // For each batch: a full bus may hold it up for long, and a budget must go on.
            let stats = self.recent_stats()?;
            let batch = EventBatch {
                source: self.tracer.source,
                sequence: self.sequence,
                anchor: self.anchor,
                events: batch.events,
                watermark,
                stats,
                crashed_runs: Vec::new(),
            };
            self.sequence += 1;
            if self.events.publish(batch).is_err() {
                return Ok(false);
            }
            if next.is_none() {
                return Ok(true);
            }
        }
    }

    /// Returns counters that are at most [`STATS_MAX_AGE`] old.
    fn recent_stats(&mut self) -> Result<SourceStats, TracerError> {
        if self.stats_cache.1.is_none_or(|read| read.elapsed() >= STATS_MAX_AGE) {
            let kernel = self.tracer.counters.read()?;
            self.tracer.capture.iter().try_for_each(|capture| capture.update(&kernel))?;
            self.stats_cache = (self.stats_of(&kernel), Some(Instant::now()));
        }
        Ok(self.stats_cache.0.clone())
    }

    /// Reads and reconciles all counters, and updates the shared ones.
    fn stats(&self) -> Result<SourceStats, TracerError> {
        Ok(self.stats_of(&self.tracer.counters.read()?))
    }

    /// Reconciles these counters, and updates the shared ones.
    fn stats_of(&self, kernel: &[u64; COUNTERS]) -> SourceStats {
        let mut stats = reconcile(kernel, &self.rings.recorded, self.recursion_misses);
        self.watcher.iter().for_each(|watcher| watcher.stats.fill(&mut stats));
        self.rings.page_origins.fill(&mut stats);
        self.rings.fill(&mut stats);
        self.tracer.device_bytes.set([&self.rings.device_bytes, &self.rings.page_origins.device_bytes]);
        if let (Some(handle), Some(requests)) = (&self.tracer.nbd_handle, &self.rings.nbd) {
            handle.set(requests.stats(kernel));
        }
        stats
    }

    /// Detaches all programs, drains the rings, and publishes the last batch.
    fn finish(mut self) -> Result<TraceSummary, TracerError> {
        self.detach("call_enter");
        self.detach("nbd_enter");
        self.tracer.usdt_links.clear();
        self.settle(|stats| blocks_in_flight(stats) == 0)?;
        // Reverse of the attach order: begins are detached before ends.
        self.tracer.attached.iter_mut().for_each(Attached::close_perf_events);
        let extra = FAULT_PROBES.iter().chain(DIRTY_PROBES).chain(SLEEP_PROBES).chain(NBD_PROBES);
        let extra = extra.chain(ASYNC_PROBES.iter().rev());
        for hook in PROBES.iter().rev().chain(extra).flat_map(Probe::hooks) {
            self.detach(hook.stem);
        }
        self.settle(balanced)?;
        // The programs write no more.
        self.rings.close();
        self.publish()?;
        self.closing = true;
        // Everything has been read, also what exceeded the settle timeout; the last batch has the
        // final counters.
        let misses = self.read_recursion_misses();
        let stats = self.stats()?;
        self.stats_cache = (stats.clone(), Some(Instant::now()));
        self.publish()?;
        // Without them a loss would look like none.
        misses?;
        self.summary(stats)
    }

    fn summary(mut self, stats: SourceStats) -> Result<TraceSummary, TracerError> {
        let at = clock::now();
        let in_flight = if blocks_in_flight(&stats) == 0 {
            Vec::new()
        } else {
            self.tracer.tables.read(&self.tracer.operations)?
        };
        let devices: BTreeSet<DeviceId> = in_flight.iter().map(|io| io.device).collect();
        let names = devices.into_iter().map(|device| (device, self.devices.name(device))).collect();
        let nbd = match &self.rings.nbd {
            Some(requests) => Some(requests.stats(&self.tracer.counters.read()?)),
            None => None,
        };
        let usdt = match &self.rings.usdt {
            Some(usdt) => {
                let kernel = self.tracer.counters.of(KernelProgram::Usdt)?;
                let (fired, dropped) = (kernel[USDT_FIRED], kernel[USDT_DROPPED]);
                Some(UsdtStats { fired, dropped, recorded: usdt.recorded })
            }
            None => None,
        };
        Ok(TraceSummary {
            stats,
            final_state: FinalState { at, in_flight, lost: self.devices.changed(), device_names: names },
            nbd,
            usdt,
            dirty: self.rings.recorded.dirty_pages(&self.tracer.counters.read()?),
        })
    }

    /// Polls until `settled` returns true or the timeout expires.
    fn settle(&mut self, settled: impl Fn(&SourceStats) -> bool) -> Result<(), TracerError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            if self.poll_rings()?.is_none() || settled(&self.stats()?) || Instant::now() >= deadline {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Unloads the programs whose name begins with `stem`.
    fn detach(&mut self, stem: &str) {
        for (name, program) in self.tracer.ebpf.programs_mut() {
            if name.starts_with(stem) {
                // A program that was never loaded has nothing to unload.
                let _ = match program {
                    Program::BtfTracePoint(program) => program.unload(),
                    Program::RawTracePoint(program) => program.unload(),
                    Program::FEntry(program) => program.unload(),
                    Program::KProbe(program) => program.unload(),
                    Program::PerfEvent(program) => program.unload(),
                    _ => Ok(()),
                };
            }
        }
    }
}

/// Returns the number of bios and requests that began and did not end.
fn blocks_in_flight(stats: &SourceStats) -> u64 {
    let begun = stats.bios_queued + stats.requests_started;
    begun.saturating_sub(stats.bios.fired + stats.requests.fired + stats.ends_missed)
}

/// Returns whether fired = recorded + dropped for every kind of record.
fn balanced(stats: &SourceStats) -> bool {
    stats.kinds().iter().all(|(_, records)| records.balances())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_interval_follows_the_load_within_bounds() {
        let ms = Duration::from_millis;
        assert_eq!(next_poll_interval(ms(4), POLL_TARGET_BYTES), ms(4));
        assert_eq!(next_poll_interval(ms(4), 0), ms(8));
        assert_eq!(next_poll_interval(ms(16), 100), ms(20));
        assert_eq!(next_poll_interval(ms(20), POLL_TARGET_BYTES * 10), ms(2));
        assert_eq!(next_poll_interval(ms(20), 8 << 20), ms(2));
        assert_eq!(next_poll_interval(Duration::ZERO, POLL_TARGET_BYTES), ms(2));
    }
}
