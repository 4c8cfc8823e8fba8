//! Time that the kernel takes for each run of a program: the way into it and out of it, which the program's own
//! clock does not see.
//!
//! *In*: programs that do nothing, at the entry of each system call. *Out*: the time by which one more of them makes a
//! system call longer. *Invariant*: measured on this machine at each start, because it depends on the mitigations of the
//! CPU: 66 to 72 ns on one with return thunks and retpolines, some 8 ns on another without.
//!
//! *The first program* is there in both measurements: it sends each call of the machine down the kernel's slow path, which
//! is no cost of a run.
//!
//! *Rejected*: a constant of 8 ns. On the first of these machines the kernel side then seemed to take 0.51 to 0.70 of the
//! time in the kernel's own statistics, and 0.80 to 0.82 with the measured time.

use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::RawTracePoint;

use crate::aya_error::error_chain;
use crate::error::TracerError;

/// Programs of the object that do nothing, and their tracepoint.
const EMPTY: [&str; 5] = ["empty_0", "empty_1", "empty_2", "empty_3", "empty_4"];
const TRACEPOINT: &str = "sys_enter";
/// Rounds of a measurement, of which the shortest counts: what else runs on the CPU makes a round longer.
const ROUNDS: usize = 20;
/// System calls of a round.
const CALLS: u32 = 500;

/// Measures the time of a run without the program's own. Takes some 10 ms.
pub(crate) fn measure(ebpf: &mut Ebpf) -> Result<Duration, TracerError> {
    let measured = difference(ebpf);
    for name in EMPTY {
        // One that was never loaded has nothing to unload.
        let _ = empty(ebpf, name).map(RawTracePoint::unload);
    }
    measured.map_err(|reason| TracerError::Probe { probe: TRACEPOINT, reason })
}

fn difference(ebpf: &mut Ebpf) -> Result<Duration, String> {
    let (first, others) = EMPTY.split_at(1);
    attach(ebpf, first)?;
    let with_one = shortest_call();
    attach(ebpf, others)?;
    Ok(shortest_call().saturating_sub(with_one) / others.len() as u32)
}

fn attach(ebpf: &mut Ebpf, names: &[&str]) -> Result<(), String> {
    for name in names {
        let program = empty(ebpf, name)?;
        program.load().and_then(|()| program.attach(TRACEPOINT)).map_err(|error| error_chain(&error))?;
    }
    Ok(())
}

fn empty<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut RawTracePoint, String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("there is no program {name}"))?;
    program.try_into().map_err(|error| error_chain(&error))
}

/// Returns the time of a system call that does next to nothing.
fn shortest_call() -> Duration {
    let round = || {
        let begin = Instant::now();
        for _ in 0..CALLS {
            // SAFETY: no memory is passed. Not libc's function, which might answer from memory.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        begin.elapsed() / CALLS
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
}
