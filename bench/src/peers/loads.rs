//! Lists of the workloads: the most informative ones, and every job of fio.

use anyhow::Result;

use super::Targets;
use super::fio_load::Fio;
use super::postgres::Postgres;
use super::sqlite::Sqlite;
use super::workload::Workload;
use crate::Extent;
use crate::disk::DiskTarget;
use crate::fio::{Job, Length, Op};

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

/// Makes the most informative workloads, with SQLite and PostgreSQL among them.
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
