//! Counters of the kernel side: per program and CPU, in a per-CPU array.

use aya::maps::{MapData, PerCpuArray};
use blkkin_probe_abi::counters as slot;
use blkkin_probe_abi::settings::{PROGRAMS, Program};

use crate::error::TracerError;

/// Counters of the kernel side, summed over programs and CPUs.
pub struct KernelCounters {
    map: PerCpuArray<MapData, [u64; slot::PER_CPU_WORDS]>,
}

impl KernelCounters {
    /// Creates a reader over the programs' per-CPU memory.
    pub fn new(map: PerCpuArray<MapData, [u64; slot::PER_CPU_WORDS]>) -> Self {
        KernelCounters { map }
    }

    /// Reads the counters of one program, summed over CPUs.
    pub fn of(&self, program: Program) -> Result<[u64; slot::COUNTERS], TracerError> {
        let mut sums = [0; slot::COUNTERS];
        self.add(program as u32, &mut sums)?;
        Ok(sums)
    }

    /// Reads the sums of all programs.
    pub fn read(&self) -> Result<[u64; slot::COUNTERS], TracerError> {
        let mut sums = [0; slot::COUNTERS];
        for program in 0..PROGRAMS as u32 {
            self.add(program, &mut sums)?;
        }
        Ok(sums)
    }

    fn add(&self, program: u32, sums: &mut [u64; slot::COUNTERS]) -> Result<(), TracerError> {
        let values = self.map.get(&program, 0);
        let values =
            values.map_err(|error| TracerError::Map { map: "PER_CPU_STATE", reason: error.to_string() })?;
        for words in values.iter() {
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum += word;
            }
        }
        Ok(())
    }
}
