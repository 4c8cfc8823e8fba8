//! The workloads: what runs, on what, and how well it went.

use std::path::Path;

use anyhow::{Context, Result};

use super::Grounds;
use super::fio_load::Fio;
use super::postgres::Postgres;
use super::sqlite::Sqlite;
use super::tree::Tree;
use crate::Extent;
use crate::disk::Place;
use crate::fio::{Job, Length, Op};

/// A load that can be traced.
pub(crate) trait Workload {
    /// For people.
    fn name(&self) -> String;

    /// For a plot: a few letters.
    fn short(&self) -> String;

    /// What is counted.
    fn unit(&self) -> &'static str;

    /// Where it works.
    fn place(&self) -> &Place;

    /// What its tasks are called: for tools that choose by name.
    fn comm(&self) -> &'static str;

    /// What tracing may cost here; none where nothing was promised.
    fn goal(&self) -> Option<Goal> {
        None
    }

    /// Before each run.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// What is started and traced; its result goes to `output`.
    fn command(&self, output: &Path) -> Vec<String>;

    /// What a server is asked for while it is traced, and its end.
    fn drive(&mut self) -> Result<()> {
        Ok(())
    }

    /// How it went.
    fn result(&mut self, output: &Path) -> Result<Done>;
}

/// How a run went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// A second.
    pub(crate) ops: f64,
    /// µs; not a number where there is none.
    pub(crate) p99: f64,
}

/// Per cent fewer operations at the most.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// On a real disk.
    Disk,
    /// Where there are more than 100,000 a second untraced.
    Fast,
}

/// A few direct reads of a file: whether a tool runs here and sees them, and what starting it takes.
pub(crate) struct Trial(pub(crate) Place);

/// How many: every tool sees at least one event of each.
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

    fn place(&self) -> &Place {
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

    fn result(&mut self, _output: &Path) -> Result<Done> {
        Ok(Done { ops: f64::NAN, p99: f64::NAN })
    }
}

/// Of fio, those that say most: the fastest device by both kinds of engine, the journal, the real disk.
const USUAL: &[Job] = &[
    Job { engine: "psync", op: Op::RandomRead, jobs: 2, depth: 1 },
    Job { engine: "io_uring", op: Op::RandomRead, jobs: 1, depth: 32 },
    Job { engine: "psync", op: Op::WriteFsync, jobs: 1, depth: 1 },
];
const USUAL_REAL: &[Job] = &[
    Job { engine: "psync", op: Op::RandomRead, jobs: 1, depth: 1 },
    Job { engine: "libaio", op: Op::RandomWrite, jobs: 1, depth: 32 },
];

/// Those that say most, SQLite, PostgreSQL and files among them.
pub(crate) fn usual(grounds: &Grounds, extent: Extent) -> Result<Vec<Box<dyn Workload>>> {
    let quick = extent.is_quick();
    let length =
        if quick { Length { run_ms: 500, ramp_ms: 100 } } else { Length { run_ms: 1500, ramp_ms: 500 } };
    let mut workloads: Vec<Box<dyn Workload>> = Vec::new();
    for job in USUAL {
        workloads.push(Box::new(Fio { job: *job, place: fast(grounds, *job)?, length }));
    }
    for job in USUAL_REAL {
        workloads.push(Box::new(Fio { job: *job, place: grounds.real.place(), length }));
    }
    let seconds = f64::from(length.run_ms) / 1e3;
    workloads.push(Box::new(Sqlite::new(grounds.mounted.place("sqlite.db")?, seconds)?));
    workloads.push(Box::new(Postgres::new(grounds.mounted.place("postgres")?, seconds)));
    workloads.push(Box::new(Tree::new(grounds.mounted.place("tree")?, if quick { 1_000 } else { 20_000 })));
    Ok(workloads)
}

/// Where a job works that is not given the real disk: what is synced needs a file system with a journal.
fn fast(grounds: &Grounds, job: Job) -> Result<Place> {
    if job.op == Op::WriteFsync { grounds.mounted.place("fio.dat") } else { grounds.raw.place() }
}

/// All of fio's, first on the fast disk and then on the real one.
pub(crate) fn every_fio(grounds: &Grounds, length: Length) -> Result<[Vec<Fio>; 2]> {
    let fast = every_job().into_iter().map(|job| Ok(Fio { job, place: fast(grounds, job)?, length }));
    let real = every_job().into_iter().map(|job| Fio { job, place: grounds.real.place(), length });
    Ok([fast.collect::<Result<_>>()?, real.collect()])
}

/// psync has no depth: it waits for each.
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
    fn the_matrix_is_whole() {
        let all = every_job();
        assert_eq!(all.len(), 3 * 2 + 2 * 3 * 2 * 2);
        assert!(USUAL.iter().chain(USUAL_REAL).all(|job| all.contains(job)));
    }
}
