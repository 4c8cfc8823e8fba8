//! Probes and a tracer: what is to be read there is told to the kernel side, a hit is measured, and the program is put in.
//!
//! *In*: probes that were found. *Out*: hits, from when they are asked for. *Invariant*: what can be refused is refused, and what a hit
//! costs is known, before a program of others is touched.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;

use aya::maps::{Array, MapData};
use aya::programs::Program;
use blkkin_probe_abi::hit::Spec;

use super::hits::{self, Collector, Hits};
use super::{Probe, attach, cost};
use crate::decode::bytes_of;
use crate::error::TracerError;
use crate::load::{Tracer, chain, missing_map};

impl Tracer {
    /// What a hit of a program's probe takes here, of whoever comes by, in ns; none where none was asked for.
    pub fn hit_ns(&self) -> Option<f64> {
        self.hits_asked.as_ref().map(|(_, ns)| *ns)
    }

    /// Puts the program at the probes that were asked for, the last thing of a start, since it costs everybody who runs theirs. What
    /// threads say there comes before each batch; none where nobody asked.
    pub fn put_probes(&mut self) -> Result<Option<Receiver<Hits>>, TracerError> {
        let Some((probes, _)) = self.hits_asked.take() else { return Ok(None) };
        let program = self.hit_program()?;
        for (row, (probe, place)) in (0..).zip(hits::rows(&probes)) {
            let probe = &probes[probe];
            let placed = attach::put(program.as_fd(), &probe.file, place, row);
            let placed = placed.map_err(|error| cannot_put(&probe.name, &probe.file.display(), error))?;
            self.placed.push(placed);
        }
        let (collector, hits) = Collector::new(probes);
        self.collector = Some(collector);
        Ok(Some(hits))
    }

    /// Has the kernel check the program for probes and tells it what to read there; and measures what a hit takes.
    pub(crate) fn prepare_probes(&mut self, probes: &[Probe]) -> Result<(), TracerError> {
        let Some(first) = probes.first() else { return Ok(()) };
        let map = self.ebpf.map_mut("SPECS").ok_or_else(|| missing_map("SPECS"))?;
        let fail = |error: &dyn std::error::Error| TracerError::Map { map: "SPECS", reason: chain(error) };
        let mut specs: Array<&mut MapData, [u8; size_of::<Spec>()]> =
            Array::try_from(map).map_err(|error| fail(&error))?;
        for (row, (probe, _)) in (0..).zip(hits::rows(probes)) {
            let spec = probes[probe].spec();
            let bytes: [u8; size_of::<Spec>()] =
                bytes_of(&spec).try_into().expect("invariant: it is as long as it is");
            specs.set(row, bytes, 0).map_err(|error| fail(&error))?;
        }
        let program = self.hit_program()?;
        let ns = cost::measure(program.as_fd());
        let ns = ns.map_err(|error| cannot_put(&first.name, &"a place of our own", error))?;
        self.hits_asked = Some((probes.to_vec(), ns));
        Ok(())
    }

    fn hit_program(&mut self) -> Result<OwnedFd, TracerError> {
        let refused = |reason: String| TracerError::Probe { probe: "hit_uprobe", reason };
        let Some(Program::UProbe(program)) = self.ebpf.program_mut("hit_uprobe") else {
            return Err(refused("there is no program for it".to_owned()));
        };
        if program.fd().is_err() {
            program.load().map_err(|error| refused(chain(&error)))?;
        }
        let fd = program.fd().map_err(|error| refused(chain(&error)))?;
        fd.as_fd().try_clone_to_owned().map_err(|error| refused(error.to_string()))
    }
}

fn cannot_put(name: &str, file: &dyn std::fmt::Display, error: io::Error) -> TracerError {
    TracerError::Hit { name: name.to_owned(), file: file.to_string(), reason: error.to_string() }
}
