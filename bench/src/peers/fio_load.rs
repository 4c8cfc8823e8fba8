//! Workload of fio: blocks of 4 KiB on one target.

use std::path::Path;

use anyhow::{Context, Result};

use super::workload::{Goal, LoadResult, Workload};
use crate::affinity;
use crate::disk::DiskTarget;
use crate::fio::{Job, Length, Op};

/// fio on one target.
pub(crate) struct Fio {
    pub(crate) job: Job,
    pub(crate) place: DiskTarget,
    pub(crate) length: Length,
}

impl Workload for Fio {
    fn name(&self) -> String {
        format!("fio, {}, {}", self.job.name(), self.place.name)
    }

    fn short(&self) -> String {
        let Job { engine, op, jobs, depth } = self.job;
        let op = match op {
            Op::RandomRead => "read",
            Op::RandomWrite => "write",
            Op::WriteFsync => "fsync",
        };
        let disk = if self.place.name == "real disk" { "disk: " } else { "" };
        format!("{disk}{engine} {op} {jobs}×{depth}")
    }

    fn unit(&self) -> &'static str {
        "IOPS"
    }

    fn place(&self) -> &DiskTarget {
        &self.place
    }

    fn comm(&self) -> &'static str {
        "fio"
    }

    fn goal(&self) -> Option<Goal> {
        match (self.place.name, self.job.op) {
            ("real disk", Op::RandomRead | Op::RandomWrite) => Some(Goal::Disk),
            ("real disk", Op::WriteFsync) => None,
            _ => Some(Goal::Fast),
        }
    }

    fn prepare(&mut self) -> Result<()> {
        // fio would lay out the file while it is traced.
        if self.job.op == Op::WriteFsync && !self.place.target.exists() {
            std::fs::write(&self.place.target, []).context("cannot make fio's file")?;
        }
        Ok(())
    }

    fn command(&self, output: &Path) -> Vec<String> {
        let cpus = affinity::cpus();
        // One job is bound to one CPU; several use all.
        let cpu_list: Vec<String> = match self.job.jobs {
            1 => vec![affinity::load_cpu().to_string()],
            _ => cpus.iter().map(ToString::to_string).collect(),
        };
        self.job.command(&self.place, self.length, &cpu_list.join(","), output)
    }

    fn result(&mut self, output: &Path) -> Result<LoadResult> {
        let result = self.job.result(output)?;
        Ok(LoadResult { ops: result.iops, p99: result.p99 })
    }
}
