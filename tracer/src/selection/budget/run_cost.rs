//! Time that the kernel takes for each run of a program: the way into it and out of it, which the program's own
//! clock does not see.
//!
//! *In*: programs that do nothing, at the entry of each system call. *Out*: the time by which one more of them makes a
//! system call longer, the median of several comparisons. *Invariant*: measured on this machine at each start, because it
//! depends on the mitigations of the CPU: 66 to 87 ns on one with return thunks and retpolines, some 8 ns on another without.
//!
//! *The first program* is there in both measurements: it sends each call of the machine down the kernel's slow path, which
//! is no cost of a run.
//!
//! *Rejected*: a constant of 8 ns. On the first of these machines the kernel side then seemed to take 0.51 to 0.70 of the
//! time in the kernel's own statistics, and 0.80 to 0.83 with the measured time.

use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::RawTracePoint;

use crate::aya_error::error_chain;
use crate::error::TracerError;

/// Programs of the object that do nothing, and their tracepoint.
const EMPTY: [&str; 5] = ["empty_0", "empty_1", "empty_2", "empty_3", "empty_4"];
const TRACEPOINT: &str = "sys_enter";
/// Comparisons, between which the CPU may change its speed.
const COMPARISONS: usize = 3;
/// Rounds of a measurement, of which the shortest counts: what else runs on the CPU makes a round longer.
const ROUNDS: usize = 20;
/// System calls of a round.
const CALLS: u32 = 500;

/// Measures the time of a run without the program's own.
pub(crate) fn measure(ebpf: &mut Ebpf) -> Result<Duration, TracerError> {
    let measured = compare(ebpf);
    for name in EMPTY {
        // One that was never loaded has nothing to unload.
        let _ = empty(ebpf, name).map(RawTracePoint::unload);
    }
    measured.map_err(|reason| TracerError::Probe { probe: TRACEPOINT, reason })
}

fn compare(ebpf: &mut Ebpf) -> Result<Duration, String> {
    for name in EMPTY {
        empty(ebpf, name)?.load().map_err(|error| error_chain(&error))?;
    }
    let (first, others) = EMPTY.split_at(1);
    for name in first {
        empty(ebpf, name)?.attach(TRACEPOINT).map_err(|error| error_chain(&error))?;
    }
    let mut differences = [Duration::ZERO; COMPARISONS];
    for difference in &mut differences {
        let with_one = shortest_call();
        let mut links = Vec::with_capacity(others.len());
        for name in others {
            links.push(empty(ebpf, name)?.attach(TRACEPOINT).map_err(|error| error_chain(&error))?);
        }
        *difference = shortest_call().saturating_sub(with_one);
        for (name, link) in others.iter().zip(links) {
            empty(ebpf, name)?.detach(link).map_err(|error| error_chain(&error))?;
        }
    }
    differences.sort_unstable();
    Ok(differences[COMPARISONS / 2] / others.len() as u32)
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
        begin.elapsed()
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or_default() / CALLS
}
