//! What the kernel's own helper takes to read a process's memory: two such reads are a context, a third one its attributes. What a
//! traced call costs more than these is ours; that these cost what they do is the machine's.

use anyhow::{Context, Result, bail};

use crate::bpf::{self, Program};
use crate::frame::Rounds;

/// In a row, by one run of a program.
const READS: usize = 64;
/// Runs; a run is some 10 µs.
const RUNS: usize = 2_000;

/// Helpers of include/uapi/linux/bpf.h.
const KTIME_GET_NS: u64 = 5;
const PROBE_READ_USER: u64 = 112;

/// ns of one read of so many bytes, run by run.
pub(super) fn read(bytes: u8) -> Result<Rounds> {
    // Touched, and so in memory.
    let memory = std::hint::black_box(vec![1_u8; usize::from(bytes)]);
    let program = program(memory.as_ptr().addr() as u64, bytes);
    let program =
        Program::load(c"blkkin_floor", &program).context("a program that reads cannot be loaded")?;
    let nothing = Program::load(c"blkkin_floor", &self::program(0, 0)).context("it cannot be loaded")?;
    let run = |program: &Program| program.run().context("a program cannot be run");
    let one = |_| {
        let (took, empty) = (run(&program)?, run(&nothing)?);
        if took == u32::MAX {
            bail!("it cannot read this process's own memory");
        }
        Ok(f64::from(took.saturating_sub(empty)) / READS as f64)
    };
    (0..RUNS).map(one).collect::<Result<Vec<f64>>>().map(|all| thinned(&all))
}

/// A median's spread is counted by heads, of some hundred at the most: the medians of twenty runs each.
fn thinned(all: &[f64]) -> Rounds {
    all.chunks(20).map(|few| few.iter().copied().collect::<Rounds>().median()).collect()
}

/// Reads so many bytes [`READS`] times; returns how many ns that took, or -1 where it failed. Of no bytes: how long nothing takes.
fn program(address: u64, bytes: u8) -> Vec<u64> {
    let call = |helper: u64| 0x85 | helper << 32;
    let mov = |to: u64, from: u64| 0xbf | to << 8 | from << 12;
    let mut all = vec![call(KTIME_GET_NS), mov(7, 0), bpf::number(6, 0)];
    for _ in 0..if bytes == 0 { 0 } else { READS } {
        // r1 = fp - 64; r2 = bytes; r3 = address (two halves); r6 |= what the call gives.
        all.extend([mov(1, 10), 0x07 | 1 << 8 | u64::from((-64_i32).cast_unsigned()) << 32]);
        all.push(bpf::number(2, i32::from(bytes)));
        all.extend([0x18 | 3 << 8 | (address & 0xffff_ffff) << 32, address >> 32 << 32]);
        all.extend([call(PROBE_READ_USER), 0x4f | 6 << 8]);
    }
    // r0 -= r7; if r6 == 0 then exit, else r0 = -1.
    all.extend([call(KTIME_GET_NS), 0x1f | 7 << 12, 0x15 | 6 << 8 | 1 << 16, bpf::number(0, -1), bpf::EXIT]);
    all
}
