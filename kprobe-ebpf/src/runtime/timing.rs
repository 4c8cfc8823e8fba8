//! Time that the programs take: each measures one run in [`TIMED_EVERY`].
//!
//! *In*: the body of a program. *Out*: the counters RUNS and TIMED_NS of its slot. Without `--budget` the
//! code is dead to the verifier.
//!
//! *Invariant*: TIMED_NS times TIMED_EVERY is the expected time of all runs. Two readings of the clock one
//! after the other give the time of one, which is not the body's. The kernel's way into the program is not
//! in it.
//!
//! *Rejected*: the kernel's own statistics (BPF_ENABLE_STATS). They cost 35 ns a run, also for the programs of
//! others, and only CAP_SYS_ADMIN switches them, which a running agent has dropped.

use super::percpu::PerCpuState;
use super::settings::setting;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::{RUNS, TIMED_EVERY, TIMED_MAX_NS, TIMED_NS};
use blkkin_probe_abi::settings::Program;

/// Runs the body of a program, and measures some of the runs. A macro: a closure would become a function,
/// whose stack Linux 6.1 adds to the program's.
macro_rules! timed {
    ($program:expr, $body:expr) => {{
        $crate::runtime::timing::begin($program);
        $body;
        $crate::runtime::timing::end($program);
    }};
}
pub(crate) use timed;

/// Begins a run.
#[inline(always)]
pub fn begin(program: Program) {
    if setting!(timed) == 0 {
        return;
    }
    let Some(percpu) = PerCpuState::of(program) else { return };
    percpu.count(RUNS);
    percpu.timing = [0; 2];
    if percpu.counted(RUNS) % TIMED_EVERY == 0 {
        // SAFETY: the clock has no preconditions.
        unsafe {
            let first = bpf_ktime_get_ns();
            let second = bpf_ktime_get_ns();
            percpu.timing = [second, second - first];
        }
    }
}

/// Ends a run.
#[inline(always)]
pub fn end(program: Program) {
    if setting!(timed) == 0 {
        return;
    }
    let Some(percpu) = PerCpuState::of(program) else { return };
    let [begun, reading] = percpu.timing;
    if begun != 0 {
        // SAFETY: the clock has no preconditions.
        let time = unsafe { bpf_ktime_get_ns() } - begun;
        let time = if time > reading { time - reading } else { 0 };
        percpu.add(TIMED_NS, if time > TIMED_MAX_NS { TIMED_MAX_NS } else { time });
    }
}
