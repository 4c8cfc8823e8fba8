//! USDT probes of a tracer: configures the kernel side, measures the overhead, and attaches the
//! program.
//!
//! *In*: resolved probes. *Out*: events, from [`Tracer::attach_usdt`] on. *Invariant*: all checks,
//! and the measurement of the overhead, happen before any other program is touched.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;

use aya::maps::{Array, MapData};
use aya::programs::Program;
use blkkin_probe_abi::usdt::UsdtSpec;

use super::Tracer;
use crate::aya_error::{error_chain, missing_map};
use crate::enrich::usdt::events::{self, UsdtBatch, UsdtCollector};
use crate::enrich::usdt::{UsdtProbe, overhead, uprobe};
use crate::error::TracerError;
use crate::read::decode::bytes_of;

impl Tracer {
    /// Returns the overhead of one event of any thread, in ns; none without USDT probes.
    pub fn usdt_overhead_ns(&self) -> Option<f64> {
        self.pending_usdt.as_ref().map(|(_, ns)| *ns)
    }

    /// Attaches the requested probes. Last step of a start, since every process that runs them
    /// pays. Returns the queue of events, or none without USDT probes. Each USDT batch precedes its
    /// event batch.
    pub fn attach_usdt(&mut self) -> Result<Option<Receiver<UsdtBatch>>, TracerError> {
        let Some((probes, _)) = self.pending_usdt.take() else { return Ok(None) };
        let program = self.usdt_program()?;
        for (row, (probe, location)) in (0..).zip(events::rows(&probes)) {
            let probe = &probes[probe];
            let link = uprobe::attach(program.as_fd(), &probe.file, location, row);
            let link = link.map_err(|error| attach_error(&probe.name, &probe.file.display(), error))?;
            self.usdt_links.push(link);
        }
        let (collector, events) = UsdtCollector::new(probes);
        self.usdt_collector = Some(collector);
        Ok(Some(events))
    }

    /// Has the kernel verify the USDT program, configures the arguments to read, and measures the
    /// overhead.
    pub(super) fn prepare_usdt(&mut self, probes: &[UsdtProbe]) -> Result<(), TracerError> {
        let Some(first) = probes.first() else { return Ok(()) };
        let map = self.ebpf.map_mut("USDT_SPECS").ok_or_else(|| missing_map("USDT_SPECS"))?;
        let fail = |error: &dyn std::error::Error| TracerError::Map {
            map: "USDT_SPECS",
            reason: error_chain(error),
        };
        let mut specs: Array<&mut MapData, [u8; size_of::<UsdtSpec>()]> =
            Array::try_from(map).map_err(|error| fail(&error))?;
        for (row, (probe, _)) in (0..).zip(events::rows(probes)) {
            let spec = probes[probe].spec();
            let bytes: [u8; size_of::<UsdtSpec>()] =
                bytes_of(&spec).try_into().expect("invariant: Spec serialises to size_of::<Spec>() bytes");
            specs.set(row, bytes, 0).map_err(|error| fail(&error))?;
        }
        let program = self.usdt_program()?;
        let ns = overhead::measure(program.as_fd());
        let ns = ns.map_err(|error| attach_error(&first.name, &"the test site of this process", error))?;
        self.pending_usdt = Some((probes.to_vec(), ns));
        Ok(())
    }

    fn usdt_program(&mut self) -> Result<OwnedFd, TracerError> {
        let refused = |reason: String| TracerError::Probe { probe: "usdt_uprobe", reason };
        let Some(Program::UProbe(program)) = self.ebpf.program_mut("usdt_uprobe") else {
            return Err(refused("the object has no such program".to_owned()));
        };
        if program.fd().is_err() {
            program.load().map_err(|error| refused(error_chain(&error)))?;
        }
        let fd = program.fd().map_err(|error| refused(error_chain(&error)))?;
        fd.as_fd().try_clone_to_owned().map_err(|error| refused(error.to_string()))
    }
}

fn attach_error(name: &str, file: &dyn std::fmt::Display, error: io::Error) -> TracerError {
    TracerError::UsdtAttach { name: name.to_owned(), file: file.to_string(), reason: error.to_string() }
}
