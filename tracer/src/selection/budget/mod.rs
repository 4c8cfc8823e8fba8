//! Budget: keeps the time that tracing takes within a share of the machine's CPUs, by head sampling.
//!
//! *In*: the kernel side's counters and the process' CPU time, ten times a second. *Out*: the ratio by which
//! the kernel side records operations, and a [`BudgetStatus`] for metrics.
//!
//! *The cost* has two parts. The programs that run most measure one run in 61 (`TIMED_NS`), and each run is
//! charged with the time of the kernel's way into it, which is measured at the start (`run_cost`). The process' own CPU time is everything that the
//! tracer does with the records, whatever process it is in: reading, encoding, sending. Programs that count
//! all requests belong to the first part.
//!
//! *Invariant*: the ratio changes only what is recorded from now on, and each record has its own ratio.
//!
//! *Limits*: the programs of tasks, commits and locks are not measured, nor is what the kernel does for this
//! process' sockets in other tasks. While the reader waits for a full bus, the ratio stays as it is. The
//! hooks themselves are a cost that no ratio
//! lowers: if they alone exceed the budget, [`BudgetStatus::is_exceeded`] is true.

mod controller;
mod meter;
pub(crate) mod run_cost;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blkkin_probe_abi::counters::COUNTERS;
use blkkin_wire::head_sampling::HeadSampling;

use crate::error::TracerError;
use crate::selection::head_sampling::HeadSamplingRatio;
use crate::stats::counters::KernelCounters;
use controller::Controller;
use meter::Meter;

/// Share of the machine's CPUs, in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(u32);

impl Budget {
    /// Largest budget: half of the machine.
    pub const MAX: Budget = Budget(500_000);
    /// Smallest budget: a ten-thousandth of the machine.
    pub const MIN: Budget = Budget(100);

    /// Returns the budget of this many parts per million; none outside [`Budget::MIN`] to [`Budget::MAX`].
    pub fn from_ppm(ppm: u32) -> Option<Budget> {
        (Self::MIN.0..=Self::MAX.0).contains(&ppm).then_some(Budget(ppm))
    }

    /// Returns the share.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

/// State of the budget, for other threads.
#[derive(Clone, Debug, Default)]
pub struct BudgetStatus(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    budget_ppm: AtomicU32,
    kernel_ppm: AtomicU32,
    user_ppm: AtomicU32,
    run_ns: AtomicU64,
    one_in: AtomicU64,
    changes: AtomicU64,
    is_exceeded: AtomicBool,
    keep_suspended: AtomicBool,
}

impl BudgetStatus {
    /// Returns the budget, as a share of the machine's CPUs.
    pub fn budget(&self) -> f64 {
        f64::from(self.0.budget_ppm.load(Relaxed)) / 1e6
    }

    /// Returns the shares that the kernel side and this process took in the last ten seconds.
    pub fn spent(&self) -> [f64; 2] {
        [&self.0.kernel_ppm, &self.0.user_ppm].map(|ppm| f64::from(ppm.load(Relaxed)) / 1e6)
    }

    /// Returns the time that the kernel takes for each run of a program, without the program's own.
    pub fn run_cost(&self) -> Duration {
        Duration::from_nanos(self.0.run_ns.load(Relaxed))
    }

    /// Returns N, where one operation in N is recorded.
    pub fn one_in(&self) -> u64 {
        self.0.one_in.load(Relaxed)
    }

    /// Returns how often the ratio changed.
    pub fn changes(&self) -> u64 {
        self.0.changes.load(Relaxed)
    }

    /// Returns whether the rules that keep operations at their end have no effect now, because the budget has no
    /// room for it.
    pub fn keep_suspended(&self) -> bool {
        self.0.keep_suspended.load(Relaxed)
    }

    /// Returns whether the cost exceeds the budget though nearly nothing is recorded.
    pub fn is_exceeded(&self) -> bool {
        self.0.is_exceeded.load(Relaxed)
    }
}

/// Measures the cost and sets the ratio.
pub(crate) struct BudgetKeeper {
    meter: Meter,
    controller: Controller,
    status: BudgetStatus,
    /// Counters of programs that record nothing, and whose time is a part of the cost.
    counting_programs: Vec<Arc<KernelCounters>>,
}

impl BudgetKeeper {
    /// Creates the keeper of a budget. `greatest` is the ratio at first.
    /// `keeps`: rules keep operations at their end. `run_cost`: as `run_cost::measure` returned it.
    pub(crate) fn new(
        budget: Budget,
        greatest: HeadSampling,
        keeps: bool,
        run_cost: Duration,
    ) -> BudgetKeeper {
        let status = BudgetStatus::default();
        status.0.budget_ppm.store(budget.0, Relaxed);
        status.0.one_in.store(greatest.one_in(), Relaxed);
        let run_ns = run_cost.as_nanos() as u64;
        status.0.run_ns.store(run_ns, Relaxed);
        // SAFETY: no memory is passed.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize;
        let controller = Controller::new(budget.share(), greatest, keeps);
        BudgetKeeper { meter: Meter::new(cpus, run_ns), controller, status, counting_programs: Vec::new() }
    }

    /// Takes the time of further programs into account.
    pub(crate) fn add_programs(&mut self, counters: Arc<KernelCounters>) {
        self.counting_programs.push(counters);
    }

    /// Keeps this budget from now on, with the present ratio, or the greatest one if that is smaller.
    pub(crate) fn set(&mut self, budget: Budget, greatest: HeadSampling, keeps: bool) {
        let ratio = self.controller.set(budget.share(), greatest, keeps);
        let Shared { budget_ppm, one_in, changes, keep_suspended, .. } = &*self.status.0;
        budget_ppm.store(budget.0, Relaxed);
        keep_suspended.store(self.controller.keep_suspended(), Relaxed);
        if one_in.swap(ratio.one_in(), Relaxed) != ratio.one_in() {
            changes.fetch_add(1, Relaxed);
        }
    }

    /// Returns the present ratio.
    pub(crate) fn ratio(&self) -> HeadSampling {
        self.controller.ratio()
    }

    /// Returns whether operations that are not sampled are dropped at once.
    pub(crate) fn keep_suspended(&self) -> bool {
        self.controller.keep_suspended()
    }

    pub(crate) fn status(&self) -> BudgetStatus {
        self.status.clone()
    }

    /// Takes the counters of now into account.
    pub(crate) fn update(
        &mut self,
        kernel: &[u64; COUNTERS],
        ratio: &mut HeadSamplingRatio,
    ) -> Result<(), TracerError> {
        let now = Instant::now();
        if !self.meter.is_due(now) {
            return Ok(());
        }
        let mut counting_ns = 0;
        for counters in &self.counting_programs {
            counting_ns += self.meter.programs_ns(&counters.read()?);
        }
        let Some(tick) = self.meter.update(now, kernel, counting_ns) else { return Ok(()) };
        let Shared { kernel_ppm, user_ppm, one_in, changes, is_exceeded, keep_suspended, .. } =
            &*self.status.0;
        let [kernel_share, user_share] = self.meter.recent();
        kernel_ppm.store((kernel_share * 1e6) as u32, Relaxed);
        user_ppm.store((user_share * 1e6) as u32, Relaxed);
        // A trace that is paused costs next to nothing, which is no reason for a greater ratio.
        if ratio.is_paused() {
            return Ok(());
        }
        let wanted = self.controller.update(&tick);
        is_exceeded.store(self.controller.is_exceeded(), Relaxed);
        if wanted != ratio.get() {
            ratio.set(wanted)?;
            one_in.store(wanted.one_in(), Relaxed);
            changes.fetch_add(1, Relaxed);
        }
        let sampled_only = self.controller.keep_suspended();
        if sampled_only != self.status.keep_suspended() {
            ratio.suspend_keep(sampled_only)?;
            keep_suspended.store(sampled_only, Relaxed);
        }
        Ok(())
    }
}
