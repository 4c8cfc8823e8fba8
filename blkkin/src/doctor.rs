//! `blkkin doctor`: reports what can be traced here, what cannot, why, and the remedy.
//!
//! *In*: the tracer's verdict on each probe, and checks of this machine. *Out*: a table or JSON on
//! stdout, and an exit status: 0 if everything required works. It needs no privilege: a check that
//! needs one is reported as unknown, with the privilege that it needs.

mod block_devices;
mod capabilities;
mod check;
mod contexts;
mod json;
mod kernel;
mod kinds;
mod lttng;
mod symbols;
mod table;
mod throttle;
mod virtual_machines;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use blkkin_tracer::attach::probes::Need;
use blkkin_tracer::{DoctorReport, ProbeStatus};

use crate::cli::DoctorArgs;
use crate::error::{CliError, Status};
use crate::terminal;
use check::{Check, CheckStatus};
use virtual_machines::MachineReport;

/// The cost for every task of the node while system calls are traced.
const FLOOR: &str = "While system calls are traced, every task of this machine pays at each system call, traced or not: \
    `blkkin help cost` has the measured figures.";

/// The results of all checks.
pub(crate) struct Diagnosis {
    checks: Vec<Check>,
    probes: DoctorReport,
    machines: Vec<MachineReport>,
    remarks: Vec<&'static str>,
}

/// Runs the checks and prints the results.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let diagnosis = Diagnosis::new();
    let text = if args.json {
        format!("{}\n", json::value(&diagnosis))
    } else {
        table::render(&diagnosis, &terminal::style(args.color, &io::stdout()))
    };
    // A reader that has gone needs no more.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(if diagnosis.works() { Status::Success } else { Status::Failed }.code())
}

impl Diagnosis {
    fn new() -> Self {
        let root = Path::new("/");
        let mut checks = vec![
            kernel::release(),
            kernel::btf(root),
            capabilities::check(root),
            contexts::check(),
            kernel::lockdown(root),
            symbols::check(root),
        ];
        checks.extend(block_devices::check(root));
        checks.extend(throttle::check(root));
        checks.push(lttng::check(root));
        let mut probes = blkkin_tracer::doctor();
        // Probes are attached from the device upwards; a report reads from the system call
        // downwards.
        probes.probes.reverse();
        probes.attempts.reverse();
        probes.nbd.reverse();
        // Without /proc nothing can be traced, and the other checks show it.
        let machines = virtual_machines::list(root);
        Diagnosis { checks, probes, machines, remarks: vec![FLOOR] }
    }

    /// Returns whether a trace would be complete.
    fn works(&self) -> bool {
        let needed = |need| matches!(need, Need::Required);
        self.checks.iter().all(|check| check.status != CheckStatus::Fails)
            && self.probes.probes.iter().all(|p| p.status == ProbeStatus::Works || !needed(p.probe.need))
    }
}
