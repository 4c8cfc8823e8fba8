//! `blkkin doctor`: what can be traced here, what not, why, and what to do.
//!
//! *In*: the tracer's verdict on each probe, and what this machine says of itself. *Out*: a table, or JSON, on
//! stdout, and an exit status: 0 when everything that blkkin needs works. Needs no privilege: what cannot be tried
//! without it is said to be unknown, with what would make it known.

mod capabilities;
mod check;
mod contexts;
mod daemons;
mod json;
mod kernel;
mod kinds;
mod queues;
mod symbols;
mod table;
mod throttle;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use blkkin_tracer::probes::Need;
use blkkin_tracer::{DoctorReport, Verdict};

use crate::args::DoctorArgs;
use crate::failure::{Failure, Status};
use crate::terminal;
use check::{Check, Standing};

/// What every task of the node pays while calls are traced (DESIGN: promises).
const FLOOR: &str = "While system calls are traced, every task of this machine pays at each call, traced or not: \
    140-165 ns for the two hooks alone, 166-180 ns with the cheapest \"not mine\" (measured on Linux 6.18).";

/// All there is to say.
pub(crate) struct Diagnosis {
    checks: Vec<Check>,
    probes: DoctorReport,
    remarks: Vec<&'static str>,
}

/// Looks, and says what it found.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let diagnosis = Diagnosis::new();
    let text = if args.json {
        format!("{}\n", json::value(&diagnosis))
    } else {
        table::render(&diagnosis, &terminal::style(args.color, &io::stdout()))
    };
    // A reader that has gone has read what it wanted.
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
        checks.extend(queues::check(root));
        checks.extend(throttle::check(root));
        checks.push(daemons::check(root));
        let mut probes = blkkin_tracer::doctor();
        // They are attached from the device upwards; a person reads from the system call downwards.
        probes.probes.reverse();
        probes.tries.reverse();
        probes.nbd.reverse();
        Diagnosis { checks, probes, remarks: vec![FLOOR] }
    }

    /// Whether a trace would be whole.
    fn works(&self) -> bool {
        let needed = |need| matches!(need, Need::Required);
        self.checks.iter().all(|check| check.standing != Standing::Fails)
            && self.probes.probes.iter().all(|p| p.verdict == Verdict::Works || !needed(p.probe.need))
    }
}
