//! Settings of a running trace that may change: the share of operations that is sampled, the rules by which others are
//! kept, the budget, and whether anything is recorded at all.
//!
//! *In*: [`CaptureSettings`] from any thread, and the kernel side's counters from the reader. *Out*: words of the
//! kernel side's maps. *Invariant*: settings apply to each operation that begins after [`CaptureControl::set`] has
//! returned, and each record has the ratio by which it was sampled. Nothing is attached or detached.
//!
//! Operations that are open meanwhile end by what they began with, but for the times of rules: those of its end
//! count.
//!
//! *Rejected*: settings as messages to the reader. It waits while its subscriber accepts no more, and that is
//! when a user asks for less.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aya::Ebpf;
use blkkin_probe_abi::counters::COUNTERS;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::head_sampling::HeadSampling;

use crate::config::TracerConfig;
use crate::error::TracerError;
use crate::selection::budget::{Budget, BudgetKeeper, BudgetStatus, run_cost};
use crate::selection::head_sampling::HeadSamplingRatio;
use crate::selection::keep::{KeepRule, KeepRules};
use crate::totals::RequestCounter;

/// Settings of a running trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSettings {
    /// No operation that begins now is sampled or kept. Page faults, commits of a journal and the write-back of a
    /// traced task's pages are recorded as ever: head sampling does not choose among them.
    pub is_paused: bool,
    /// Ratio by which operations are sampled; with a budget, the greatest one.
    pub sample: HeadSampling,
    /// Rules by which an operation is kept at its end. Rules have an effect only if the trace began with some or with
    /// [`TracerConfig::keep_changeable`].
    pub keep: Vec<KeepRule>,
    /// Share of the CPUs that tracing may take. It has an effect only if the trace began with one.
    pub budget: Option<Budget>,
}

/// Handle that changes the settings of a trace with head sampling.
#[derive(Clone)]
pub struct CaptureControl(Arc<Mutex<Capture>>);

impl fmt::Debug for CaptureControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings().fmt(f)
    }
}

struct Capture {
    settings: CaptureSettings,
    ratio: HeadSamplingRatio,
    /// Rules; none if operations are never deferred.
    rules: Option<KeepRules>,
    budget: Option<BudgetKeeper>,
}

impl CaptureControl {
    /// Takes the maps of a loaded object, and sets them. There is no handle without head sampling.
    pub(crate) fn take(
        ebpf: &mut Ebpf,
        config: &TracerConfig,
    ) -> Result<Option<CaptureControl>, TracerError> {
        let Some(sample) = config.head_sampling else { return Ok(None) };
        let rules = config.defers().then(|| KeepRules::take(ebpf)).transpose()?;
        let keep = config.keep.clone();
        let budget = match config.budget {
            Some(budget) => {
                Some(BudgetKeeper::new(budget, sample, !keep.is_empty(), run_cost::measure(ebpf)?))
            }
            None => None,
        };
        let settings = CaptureSettings { is_paused: false, sample, keep, budget: config.budget };
        let ratio = HeadSamplingRatio::take(ebpf, sample)?;
        let mut capture = Capture { settings: settings.clone(), ratio, rules, budget };
        capture.write(&settings)?;
        Ok(Some(CaptureControl(Arc::new(Mutex::new(capture)))))
    }

    /// Returns the settings that were set last.
    pub fn settings(&self) -> CaptureSettings {
        self.lock().settings.clone()
    }

    /// Sets what is recorded of the operations that begin from now on.
    pub fn set(&self, settings: &CaptureSettings) -> Result<(), TracerError> {
        let mut capture = self.lock();
        capture.write(settings)?;
        capture.settings = settings.clone();
        Ok(())
    }

    /// Returns what the budget does, if there is one.
    pub fn budget(&self) -> Option<BudgetStatus> {
        self.lock().budget.as_ref().map(BudgetKeeper::status)
    }

    /// Takes the time of the programs that count all requests into account, if there is a budget.
    pub fn add_to_budget(&self, counter: &RequestCounter) {
        if let Some(budget) = &mut self.lock().budget {
            budget.add_programs(counter.counters());
        }
    }

    /// Returns the rules that compare operations with each other, as they are written on the command line, each with the
    /// time from which an operation counts as slow now; none if none does.
    pub fn percentile_limits(&self) -> Vec<(String, Option<DurationNs>)> {
        let capture = self.lock();
        let mut limits = capture.rules.as_ref().map_or_else(Vec::new, KeepRules::limits);
        let suspended = capture.budget.as_ref().is_some_and(BudgetKeeper::keep_suspended);
        if capture.settings.is_paused || suspended {
            limits.iter_mut().for_each(|(_, slow)| *slow = None);
        }
        limits
    }

    /// Takes the counters of now into account, and what ended in the last minute.
    pub(crate) fn update(&self, kernel: &[u64; COUNTERS]) -> Result<(), TracerError> {
        let Capture { ratio, budget, rules, .. } = &mut *self.lock();
        rules.as_mut().map_or(Ok(()), |rules| rules.update(Instant::now()))?;
        budget.as_mut().map_or(Ok(()), |budget| budget.update(kernel, ratio))
    }

    fn lock(&self) -> MutexGuard<'_, Capture> {
        // A panic leaves valid settings behind: each is complete without the others.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Capture {
    /// Writes the maps. New rules are complete before an operation is deferred for them.
    fn write(&mut self, settings: &CaptureSettings) -> Result<(), TracerError> {
        self.rules.iter_mut().try_for_each(|rules| rules.set(&settings.keep))?;
        let CaptureSettings { is_paused, sample, ref keep, budget } = *settings;
        let (mut ratio, mut suspended) = (sample, false);
        if let (Some(keeper), Some(budget)) = (&mut self.budget, budget) {
            let of =
                |settings: &CaptureSettings| (settings.budget, settings.sample, settings.keep.is_empty());
            if of(&self.settings) != of(settings) {
                keeper.set(budget, sample, !keep.is_empty());
            }
            (ratio, suspended) = (keeper.ratio(), keeper.keep_suspended());
        }
        self.ratio.set_conditions(ratio, suspended || keep.is_empty(), is_paused)
    }
}
