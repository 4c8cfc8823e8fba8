//! The tracer at work: drains the rings by timer, and publishes batches until it is told to stop.
//!
//! *Shutdown*: first the hook that begins everything (sys_enter) is taken away, then the others, then the rings are
//! emptied until the books agree. So what was begun may still end, and what is in a ring is never thrown away.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use aya::programs::Program;
use blkkin_bus::Publisher;
use blkkin_probe_abi::counters::{HITS_DROPPED, HITS_FIRED};
use blkkin_probe_abi::settings::Program as KernelProgram;
use blkkin_wire::batch::{Accounts, EventBatch};
use blkkin_wire::clock::{ClockAnchor, MonotonicNs};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::unended::AtEnd;

use crate::accounts::balance;
use crate::config::{DRAIN_BYTES, DRAIN_EVERY};
use crate::context::places::Places;
use crate::context::watch::{Asked, Watch};
use crate::devices::DeviceNamer;
use crate::error::TracerError;
use crate::load::Tracer;
use crate::memory;
use crate::nbd::NbdBooks;
use crate::origin;
use crate::probes::{NBD_PROBES, PROBES, Probe};
use crate::rings::RingReader;
use crate::usdt::hits::HitBooks;

/// Events of a batch at the most. The bus holds so many batches at the most that it is full with 131,072 events (30 MB).
const BATCH_MAX: usize = 2_048;
/// Publishings between two looks at how often the kernel skipped a program: each is a read of a file a program.
const MISSES_EVERY: u64 = 64;
/// How old the accounts of a batch may be; those of the last are what all came to. To read them takes a look at a map of the
/// kernel for each program.
const ACCOUNTS_EVERY: Duration = Duration::from_millis(50);
/// How long block I/O that is in flight when tracing stops is waited for.
const SETTLE: Duration = Duration::from_millis(200);

/// Tells a tracer to stop.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    shared: Arc<(Mutex<bool>, Condvar)>,
}

impl StopSignal {
    /// A signal that is not given yet.
    pub fn new() -> Self {
        StopSignal::default()
    }

    /// Gives it.
    pub fn stop(&self) {
        let (flag, woken) = &*self.shared;
        *flag.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        woken.notify_all();
    }

    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits for it at most `period`; says whether it was given.
    pub fn wait(&self, period: Duration) -> bool {
        let (flag, woken) = &*self.shared;
        let guard = flag.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match woken.wait_timeout_while(guard, period, |stopped| !*stopped) {
            Ok((stopped, _)) => *stopped,
            Err(poisoned) => *poisoned.into_inner().0,
        }
    }
}

/// What there is to say when tracing has ended.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// The final books.
    pub accounts: Accounts,
    /// What had not ended, and which devices are not what they were.
    pub at_end: AtEnd,
    /// What became of requests to NBD servers, where they were asked for.
    pub nbd: Option<NbdBooks>,
    /// What became of what threads said at probes of their programs, where that was asked for.
    pub hits: Option<HitBooks>,
}

impl Tracer {
    /// Publishes what happens until `stop` is given or nobody listens any more. Everything is detached when this
    /// returns.
    pub fn drain(mut self, events: Publisher<EventBatch>, stop: StopSignal) -> Result<Ended, TracerError> {
        memory::give_back();
        prefer_this_thread();
        let watch = match self.contexts.take() {
            Some((places, asked)) => Some(watch(places, asked)?),
            None => None,
        };
        let mut pump = Pump {
            watch,
            rings: self.map_rings()?,
            devices: std::mem::take(&mut self.devices),
            tracer: self,
            events,
            anchor: origin::anchor(),
            sequence: 0,
            told: MonotonicNs::default(),
            expected: 0,
            unanswered: false,
            misses: 0,
            books: (Accounts::default(), None),
        };
        let mut pause = *DRAIN_EVERY.start();
        while !stop.wait(pause) {
            match pump.round()? {
                Some(found) => pause = next_pause(pause, found),
                None => break,
            }
        }
        pump.finish()
    }
}

/// How long to wait after a drain that found so many bytes after this pause. It grows to the double at the most, and shrinks
/// as far as it must: a burst does not find the rings left alone for long twice.
fn next_pause(pause: Duration, found: usize) -> Duration {
    let (shortest, longest) = (*DRAIN_EVERY.start(), *DRAIN_EVERY.end());
    let factor = (DRAIN_BYTES as f64 / found.max(1) as f64).min(2.0);
    pause.max(shortest).mul_f64(factor).clamp(shortest, longest)
}

/// Lets the reader run before ordinary work. It needs little, but a machine that is busy with the very load that is
/// traced would keep it waiting for tens of milliseconds, in which rings overflow. Without the right to it (CAP_SYS_NICE)
/// it stays as it was.
fn prefer_this_thread() {
    const NICE: libc::c_int = -10;
    // SAFETY: no memory is passed; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

fn watch(places: Places, asked: Asked) -> Result<Watch, TracerError> {
    Watch::begin(places, asked)
        .map_err(|error| TracerError::System { path: "a thread".into(), reason: error.to_string() })
}

struct Pump {
    /// Has processes looked at that may publish contexts.
    watch: Option<Watch>,
    rings: RingReader,
    tracer: Tracer,
    events: Publisher<EventBatch>,
    anchor: ClockAnchor,
    devices: DeviceNamer,
    sequence: u64,
    /// The last batch's watermark.
    told: MonotonicNs,
    /// Events of the last batch: those of the next are about as many.
    expected: usize,
    /// Nothing more will be read: requests to NBD servers that have no answer have none.
    unanswered: bool,
    /// Recursion misses when last looked at.
    misses: u64,
    /// The accounts when last looked at, and when that was.
    books: (Accounts, Option<Instant>),
}

impl Pump {
    /// One drain: how many bytes were new in the ring that had most. None when nobody listens.
    fn round(&mut self) -> Result<Option<usize>, TracerError> {
        let found = self.rings.look(origin::now());
        Ok(self.publish()?.then_some(found))
    }

    /// Publishes what is below the watermark. False when nobody listens.
    fn publish(&mut self) -> Result<bool, TracerError> {
        if self.sequence.is_multiple_of(MISSES_EVERY) {
            self.misses = self.tracer.recursion_misses();
        }
        let accounts = self.books_of_late()?;
        let dropped = match &self.rings.hits {
            Some(_) => self.tracer.counters.of(KernelProgram::Hit)?[HITS_DROPPED],
            None => 0,
        };
        let now = origin::now();
        loop {
            let mut events = Vec::with_capacity(self.expected);
            let next = self.rings.merge(&mut events, BATCH_MAX);
            self.expected = events.len();
            if let (Some(requests), true) = (&mut self.rings.nbd, self.unanswered) {
                requests.finish(origin::now(), &mut events);
            }
            if let Some(ledger) = &self.tracer.ledger {
                ledger.read(&self.rings.recorded.tally());
            }
            if let Some(watch) = &mut self.watch {
                watch.look(&events);
            }
            self.name_devices(&mut events);
            let watermark = next.unwrap_or(self.rings.watermark());
            if let Some(watch) = &mut self.watch {
                let said = watch.told(self.told, watermark);
                events.extend(said.into_iter().map(|process| LayerEvent::Process(process.into())));
            }
            self.told = watermark;
            // Before the batch, so that who has it has them.
            if let Some(hits) = &mut self.rings.hits {
                hits.give(watermark, dropped, now);
            }
            let batch = EventBatch {
                source: self.tracer.source,
                sequence: self.sequence,
                anchor: self.anchor,
                events,
                watermark,
                accounts: accounts.clone(),
                killed: Vec::new(),
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

    /// Adds the names of devices that are met for the first time.
    fn name_devices(&mut self, events: &mut Vec<LayerEvent>) {
        let mut met = Vec::new();
        for event in &*events {
            match event {
                LayerEvent::Bio(bio) => met.extend(self.devices.meet(bio.device, bio.end)),
                LayerEvent::Request(request) => {
                    met.extend(self.devices.meet(request.device, request.complete));
                }
                LayerEvent::Pair(pair) => {
                    met.extend(self.devices.meet(pair.bio.device, pair.bio.end));
                    met.extend(self.devices.meet(pair.request.device, pair.request.complete));
                }
                LayerEvent::Commit(commit) => met.extend(self.devices.meet(commit.device, commit.end)),
                _ => {}
            }
        }
        events.extend(met.into_iter().map(LayerEvent::Device));
    }

    /// The accounts as they were at most [`ACCOUNTS_EVERY`] ago.
    fn books_of_late(&mut self) -> Result<Accounts, TracerError> {
        if self.books.1.is_none_or(|read| read.elapsed() >= ACCOUNTS_EVERY) {
            self.books = (self.accounts()?, Some(Instant::now()));
        }
        Ok(self.books.0.clone())
    }

    fn accounts(&self) -> Result<Accounts, TracerError> {
        let kernel = self.tracer.counters.read()?;
        let mut accounts = balance(&kernel, &self.rings.recorded, self.misses);
        self.watch.iter().for_each(|watch| watch.tally.fill(&mut accounts));
        if let (Some(asking), Some(requests)) = (&self.tracer.nbd, &self.rings.nbd) {
            asking.show(requests.books(&kernel));
        }
        Ok(accounts)
    }

    fn finish(mut self) -> Result<Ended, TracerError> {
        self.detach("call_enter");
        self.detach("nbd_enter");
        self.tracer.placed.clear();
        self.settle(|books| blocks_in_flight(books) == 0)?;
        // The reverse of the order in which they came: what begins things goes before what ends them.
        for hook in PROBES.iter().rev().chain(NBD_PROBES).flat_map(Probe::hooks) {
            self.detach(hook.stem);
        }
        self.settle(balanced)?;
        // Nothing is written any more.
        self.rings.close();
        self.publish()?;
        self.unanswered = true;
        // All is read now, also where there was more than could be settled in time; and the last batch has the final books.
        self.misses = self.tracer.recursion_misses();
        let accounts = self.accounts()?;
        self.books = (accounts.clone(), Some(Instant::now()));
        self.publish()?;
        self.ended(accounts)
    }

    fn ended(mut self, accounts: Accounts) -> Result<Ended, TracerError> {
        let at = origin::now();
        let in_flight = if blocks_in_flight(&accounts) == 0 {
            Vec::new()
        } else {
            self.tracer.tables.read(&self.tracer.operations)?
        };
        let devices: BTreeSet<DeviceId> = in_flight.iter().map(|one| one.device).collect();
        let names = devices.into_iter().map(|device| (device, self.devices.name(device))).collect();
        let nbd = match &self.rings.nbd {
            Some(requests) => Some(requests.books(&self.tracer.counters.read()?)),
            None => None,
        };
        let hits = match &self.rings.hits {
            Some(hits) => {
                let kernel = self.tracer.counters.of(KernelProgram::Hit)?;
                let (fired, dropped) = (kernel[HITS_FIRED], kernel[HITS_DROPPED]);
                Some(HitBooks { fired, dropped, recorded: hits.recorded })
            }
            None => None,
        };
        Ok(Ended { accounts, at_end: AtEnd { at, in_flight, lost: self.devices.lost(), names }, nbd, hits })
    }

    /// Drains until `settled` says so, or the time for it is over.
    fn settle(&mut self, settled: impl Fn(&Accounts) -> bool) -> Result<(), TracerError> {
        let deadline = Instant::now() + SETTLE;
        loop {
            if self.round()?.is_none() || settled(&self.accounts()?) || Instant::now() >= deadline {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes away the programs whose name begins with `stem`.
    fn detach(&mut self, stem: &str) {
        for (name, program) in self.tracer.ebpf.programs_mut() {
            if name.starts_with(stem) {
                // A program that was never loaded has nothing to unload.
                let _ = match program {
                    Program::BtfTracePoint(program) => program.unload(),
                    Program::RawTracePoint(program) => program.unload(),
                    Program::FEntry(program) => program.unload(),
                    Program::KProbe(program) => program.unload(),
                    _ => Ok(()),
                };
            }
        }
    }
}

/// Bios and requests that began and did not end.
fn blocks_in_flight(books: &Accounts) -> u64 {
    let begun = books.bios_queued + books.requests_started;
    begun.saturating_sub(books.bios.fired + books.requests.fired + books.ends_missed)
}

fn balanced(accounts: &Accounts) -> bool {
    [accounts.calls, accounts.bios, accounts.requests, accounts.commits, accounts.names]
        .iter()
        .all(blkkin_wire::batch::Account::balances)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_follows_what_is_found_within_its_bounds() {
        let ms = Duration::from_millis;
        assert_eq!(next_pause(ms(4), DRAIN_BYTES), ms(4));
        assert_eq!(next_pause(ms(4), 0), ms(8));
        assert_eq!(next_pause(ms(16), 100), ms(20));
        assert_eq!(next_pause(ms(20), DRAIN_BYTES * 10), ms(2));
        assert_eq!(next_pause(ms(20), 8 << 20), ms(2));
        assert_eq!(next_pause(Duration::ZERO, DRAIN_BYTES), ms(2));
    }
}
