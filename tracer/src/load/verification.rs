//! Verification of the eBPF programs, which takes nearly all of a start.
//!
//! *In*: for each probe its attach points, best first. *Out*: for each probe one loaded program, of
//! the first attach point that the kernel accepts. A program that the kernel rejects here is
//! rejected again, and reported, when it is attached.
//!
//! Several threads load at once: the kernel verifies each program on the CPU of the thread that
//! loads it, and privileged verifications do not wait for each other (bpf_check,
//! kernel/bpf/verifier.c).

use aya::programs::Program;
use aya::{Btf, Ebpf};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::attach::attach_point::AttachPoint;

/// Maximum number of threads. A production machine has work of its own.
const THREADS_MAX: usize = 4;

/// Attach points of one probe, best first, each with its program.
type Alternatives<'a> = Vec<(AttachPoint, &'a mut Program)>;

/// Loads one program of each probe.
pub(super) fn verify(ebpf: &mut Ebpf, probes: impl Iterator<Item = Vec<AttachPoint>>, btf: &Btf) {
    let mut programs: HashMap<String, &mut Program> =
        ebpf.programs_mut().map(|(name, program)| (name.to_owned(), program)).collect();
    let mut with_program =
        |point: AttachPoint| programs.remove(&point.program_name()).map(|program| (point, program));
    let waiting: Vec<Alternatives> =
        probes.map(|points| points.into_iter().filter_map(&mut with_program).collect()).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let waiting = Mutex::new(waiting.into_iter());
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| load_each(&waiting, btf));
        }
        load_each(&waiting, btf);
    });
}

/// Loads programs until no probe waits.
fn load_each<'a>(waiting: &Mutex<impl Iterator<Item = Alternatives<'a>>>, btf: &Btf) {
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    while let Some(alternatives) = next() {
        for (point, program) in alternatives {
            if point.load(program, btf).is_ok() {
                break;
            }
        }
    }
}
