//! Cost of the kernel helper that reads a process's memory: a context takes two such reads,
//! attributes a third. It belongs to the machine; the rest of a traced call's overhead belongs to
//! blkkin.

use anyhow::{Context, Result, bail};

use crate::bpf::{self, Program};
use crate::frame::Rounds;

/// Reads in a run of the program.
const READS: usize = 64;
/// Runs of the program, about 10 µs each.
const RUNS: usize = 2_000;

/// Helpers of include/uapi/linux/bpf.h.
const KTIME_GET_NS: u64 = 5;
const PROBE_READ_USER: u64 = 112;

/// Measures ns per read of this number of bytes, run by run.
pub(super) fn read(bytes: u8) -> Result<Rounds> {
    // Written, so that the page is in memory.
    let memory = std::hint::black_box(vec![1_u8; usize::from(bytes)]);
    let program = program(memory.as_ptr().addr() as u64, bytes);
    let program =
        Program::load(c"blkkin_floor", &program).context("a program that reads cannot be loaded")?;
    let nothing = Program::load(c"blkkin_floor", &self::program(0, 0)).context("it cannot be loaded")?;
    let run = |program: &Program| program.run().context("a program cannot be run");
    let measure = |_| {
        let (elapsed, empty) = (run(&program)?, run(&nothing)?);
        if elapsed == u32::MAX {
            bail!("it cannot read this process's own memory");
        }
        Ok(f64::from(elapsed.saturating_sub(empty)) / READS as f64)
    };
    (0..RUNS).map(measure).collect::<Result<Vec<f64>>>().map(|all| thinned(&all))
}

/// Reduces the runs to medians of twenty, because the spread is computed for up to some hundred
/// values.
fn thinned(all: &[f64]) -> Rounds {
    all.chunks(20).map(|few| few.iter().copied().collect::<Rounds>().median()).collect()
}

/// Builds a program that reads `bytes` bytes [`READS`] times and returns the ns, or -1 after a
/// failure. With 0 bytes it measures the empty loop.
fn program(address: u64, bytes: u8) -> Vec<u64> {
    let call = |helper: u64| 0x85 | helper << 32;
    let mov = |to: u64, from: u64| 0xbf | to << 8 | from << 12;
    let mut all = vec![call(KTIME_GET_NS), mov(7, 0), bpf::number(6, 0)];
    for _ in 0..if bytes == 0 { 0 } else { READS } {
        // r1 = fp - 64; r2 = bytes; r3 = address (two halves); r6 or'ed with the result of the
        // call.
        all.extend([mov(1, 10), 0x07 | 1 << 8 | u64::from((-64_i32).cast_unsigned()) << 32]);
        all.push(bpf::number(2, i32::from(bytes)));
        all.extend([0x18 | 3 << 8 | (address & 0xffff_ffff) << 32, address >> 32 << 32]);
        all.extend([call(PROBE_READ_USER), 0x4f | 6 << 8]);
    }
    // r0 -= r7; if r6 == 0 then exit, else r0 = -1.
    all.extend([call(KTIME_GET_NS), 0x1f | 7 << 12, 0x15 | 6 << 8 | 1 << 16, bpf::number(0, -1), bpf::EXIT]);
    all
}
