//! Workloads: the program, its target and its result.

use std::path::Path;

use anyhow::{Context, Result};

use super::Targets;
use super::fio_load::Fio;
use super::postgres::Postgres;
use super::sqlite::Sqlite;
use super::tree::Tree;
use crate::Extent;
use crate::disk::DiskTarget;
use crate::fio::{Job, Length, Op};

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

/// Most informative jobs of fio: the fastest device with both kinds of engine, the journal, the
/// real disk.
const USUAL: &[Job] = &[
    Job { engine: "psync", op: Op::RandomRead, jobs: 2, depth: 1 },
    Job { engine: "io_uring", op: Op::RandomRead, jobs: 1, depth: 32 },
    Job { engine: "psync", op: Op::WriteFsync, jobs: 1, depth: 1 },
];
const USUAL_REAL: &[Job] = &[
    Job { engine: "psync", op: Op::RandomRead, jobs: 1, depth: 1 },
    Job { engine: "libaio", op: Op::RandomWrite, jobs: 1, depth: 32 },
];

/// Makes the most informative workloads, with SQLite, PostgreSQL and files among them.
pub(crate) fn usual(targets: &Targets, extent: Extent) -> Result<Vec<Box<dyn Workload>>> {
    let quick = extent.is_quick();
    let length =
        if quick { Length { run_ms: 500, ramp_ms: 100 } } else { Length { run_ms: 1500, ramp_ms: 500 } };
    let mut workloads: Vec<Box<dyn Workload>> = Vec::new();
    for job in USUAL {
        workloads.push(Box::new(Fio { job: *job, place: fast(targets, *job)?, length }));
    }
    for job in USUAL_REAL {
        workloads.push(Box::new(Fio { job: *job, place: targets.real.place(), length }));
    }
    let seconds = f64::from(length.run_ms) / 1e3;
    workloads.push(Box::new(Sqlite::new(targets.mounted.place("sqlite.db")?, seconds)?));
    workloads.push(Box::new(Postgres::new(targets.mounted.place("postgres")?, seconds)));
    workloads.push(Box::new(Tree::new(targets.mounted.place("tree")?, if quick { 1_000 } else { 20_000 })));
    Ok(workloads)
}

/// Returns the fast target of a job: write + fsync needs a file system with a journal.
fn fast(targets: &Targets, job: Job) -> Result<DiskTarget> {
    if job.op == Op::WriteFsync { targets.mounted.place("fio.dat") } else { targets.raw.place() }
}

/// Makes all jobs of fio, on the fast disk and on the real one.
pub(crate) fn every_fio(targets: &Targets, length: Length) -> Result<[Vec<Fio>; 2]> {
    let fast = every_job().into_iter().map(|job| Ok(Fio { job, place: fast(targets, job)?, length }));
    let real = every_job().into_iter().map(|job| Fio { job, place: targets.real.place(), length });
    Ok([fast.collect::<Result<_>>()?, real.collect()])
}

/// Lists all jobs. psync has no queue depth: it waits for each request.
fn every_job() -> Vec<Job> {
    let mut all = Vec::new();
    for engine in ["psync", "libaio", "io_uring"] {
        for op in [Op::RandomRead, Op::RandomWrite, Op::WriteFsync] {
            for depth in if engine == "psync" { &[1][..] } else { &[1, 32] } {
                all.extend([1, 2].map(|jobs| Job { engine, op, jobs, depth: *depth }));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_is_complete() {
        let all = every_job();
        assert_eq!(all.len(), 3 * 2 + 2 * 3 * 2 * 2);
        assert!(USUAL.iter().chain(USUAL_REAL).all(|job| all.contains(job)));
    }
}
