//! What a hit takes on this machine: measured at a place of our own, before anything of others is touched.
//!
//! *In*: the program. *Out*: ns a hit. It is the trap into the kernel and back, and the program's first look at a thread that nobody
//! follows: what everybody pays. A followed thread pays for a record besides (docs/daemons.md has the figures).
//!
//! The place is a `nop`, as a probe's is: the kernel goes on behind it and does not step over it (arch/x86/kernel/uprobes.c,
//! `branch_setup_xol_ops`), which would take some ten times as long.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

use blkkin_probe_abi::hit::OWN_ROW;

use super::attach;

/// Runs of so many hits each; the one in the middle counts, as others interrupt.
const RUNS: usize = 9;
const HITS: u32 = 100;

/// A place as probes are: a `nop`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(naked)]
extern "C" fn place() {
    core::arch::naked_asm!("nop", "ret")
}

/// Measures it.
pub(crate) fn measure(program: BorrowedFd<'_>) -> io::Result<f64> {
    let offset = offset_of(place as *const () as u64)?;
    let bare = median();
    let _placed = attach::put(program, Path::new("/proc/self/exe"), (offset, 0), OWN_ROW)?;
    Ok((median() - bare).max(0.0))
}

fn median() -> f64 {
    let mut runs = [0.0; RUNS];
    for run in &mut runs {
        let begun = Instant::now();
        for _ in 0..HITS {
            std::hint::black_box(place as extern "C" fn())();
        }
        *run = begun.elapsed().as_nanos() as f64 / f64::from(HITS);
    }
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 2]
}

/// Where in our file what lies at an address in memory is.
fn offset_of(address: u64) -> io::Result<u64> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let found = maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (begin, end) = (hex(begin)?, hex(end)?);
        let offset = hex(words.nth(1)?)?;
        (begin..end).contains(&address).then(|| offset + (address - begin))
    });
    found.ok_or_else(|| io::Error::other("it lies in no file"))
}
