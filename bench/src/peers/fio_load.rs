//! fio as a workload: 4 KiB, at one place.

use std::path::Path;

use anyhow::{Context, Result};

use super::workload::{Done, Goal, Workload};
use crate::affinity;
use crate::disk::Place;
use crate::fio::{Job, Length, Op};

/// fio at one place.
pub(crate) struct Fio {
    pub(crate) job: Job,
    pub(crate) place: Place,
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

    fn place(&self) -> &Place {
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
        // A file is laid out by fio itself otherwise, and that would be traced.
        if self.job.op == Op::WriteFsync && !self.place.target.exists() {
            std::fs::write(&self.place.target, []).context("cannot make fio's file")?;
        }
        Ok(())
    }

    fn command(&self, output: &Path) -> Vec<String> {
        let cpus = affinity::cpus();
        // One job stays on one CPU; more have all.
        let shown: Vec<String> = match self.job.jobs {
            1 => vec![affinity::load_cpu().to_string()],
            _ => cpus.iter().map(ToString::to_string).collect(),
        };
        self.job.command(&self.place, self.length, &shown.join(","), output)
    }

    fn result(&mut self, output: &Path) -> Result<Done> {
        let result = self.job.result(output)?;
        Ok(Done { ops: result.iops, p99: result.p99 })
    }
}
