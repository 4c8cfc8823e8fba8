//! Workloads: the program, its target and its result.

use std::path::Path;

use anyhow::{Context, Result};

use crate::disk::DiskTarget;

/// Load that can be traced.
pub(crate) trait Workload {
    /// Returns the name in tables.
    fn name(&self) -> String;

    /// Returns the label in plots: a few letters.
    fn short(&self) -> String;

    /// Returns the unit of the rate.
    fn unit(&self) -> &'static str;

    /// Returns the target.
    fn place(&self) -> &DiskTarget;

    /// Returns the command name of its tasks, for tools that filter by name.
    fn comm(&self) -> &'static str;

    /// Returns the goal for the cost of tracing; `None` if there is none.
    fn goal(&self) -> Option<Goal> {
        None
    }

    /// Prepares a run.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the traced command line; its result goes to `output`.
    fn command(&self, output: &Path) -> Vec<String>;

    /// Sends requests to a traced server, and stops it.
    fn drive(&mut self) -> Result<()> {
        Ok(())
    }

    /// Parses the result.
    fn result(&mut self, output: &Path) -> Result<LoadResult>;
}

/// Result of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadResult {
    /// Operations per second.
    pub(crate) ops: f64,
    /// 99th percentile in µs; NaN if unknown.
    pub(crate) p99: f64,
}

/// Maximum loss of operations in per cent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Goal on a real disk.
    Disk,
    /// Goal of workloads with more than 100,000 untraced operations per second.
    Fast,
}

/// Direct reads of a file, which test whether a tool runs here and sees them, and what its start
/// costs.
pub(crate) struct Trial(pub(crate) DiskTarget);

/// Number of reads: every tool sees at least one event of each.
pub(crate) const TRIAL_READS: u64 = 64;

impl Workload for Trial {
    fn name(&self) -> String {
        "trial".to_owned()
    }

    fn short(&self) -> String {
        self.name()
    }

    fn unit(&self) -> &'static str {
        "reads/s"
    }

    fn place(&self) -> &DiskTarget {
        &self.0
    }

    fn comm(&self) -> &'static str {
        "dd"
    }

    fn prepare(&mut self) -> Result<()> {
        if self.0.target.exists() {
            return Ok(());
        }
        std::fs::write(&self.0.target, vec![b'x'; 4096 * TRIAL_READS as usize]).context("cannot make a file")
    }

    fn command(&self, _output: &Path) -> Vec<String> {
        let (from, count) = (format!("if={}", self.0.target.display()), format!("count={TRIAL_READS}"));
        ["dd", &from, "of=/dev/null", "bs=4k", &count, "iflag=direct", "status=none"]
            .map(str::to_owned)
            .into()
    }

    fn result(&mut self, _output: &Path) -> Result<LoadResult> {
        Ok(LoadResult { ops: f64::NAN, p99: f64::NAN })
    }
}
