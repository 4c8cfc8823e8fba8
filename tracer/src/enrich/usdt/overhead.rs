//! Overhead of one USDT event on this machine, measured at a probe site of this process before
//! other programs are touched.
//!
//! *In*: the program. *Out*: ns per event: the trap into the kernel and back, and the program's
//! check of an untraced thread. Every thread that reaches the probe pays this. A traced thread also
//! pays for its record (docs/daemons.md has the numbers).
//!
//! The site is a `nop`, like a probe's. The kernel emulates it instead of single-stepping it
//! (arch/x86/kernel/uprobes.c, `branch_setup_xol_ops`), which would take some ten times as long.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

use blkkin_probe_abi::usdt::OVERHEAD_ROW;

use super::uprobe;

/// Number of runs, of which the median counts, and of calls per run.
const RUNS: usize = 9;
const CALLS_PER_RUN: u32 = 100;

/// A probe site: a `nop`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(naked)]
extern "C" fn probe_site() {
    core::arch::naked_asm!("nop", "ret")
}

/// Measures the overhead in ns.
pub(crate) fn measure(program: BorrowedFd<'_>) -> io::Result<f64> {
    let offset = offset_of(probe_site as *const () as u64)?;
    let bare = median_ns();
    let _placed = uprobe::attach(program, Path::new("/proc/self/exe"), (offset, 0), OVERHEAD_ROW)?;
    Ok((median_ns() - bare).max(0.0))
}

fn median_ns() -> f64 {
    let mut runs = [0.0; RUNS];
    for run in &mut runs {
        let begun = Instant::now();
        for _ in 0..CALLS_PER_RUN {
            std::hint::black_box(probe_site as extern "C" fn())();
        }
        *run = begun.elapsed().as_nanos() as f64 / f64::from(CALLS_PER_RUN);
    }
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 2]
}

/// Returns the file offset of an address in this process's own program.
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
    found.ok_or_else(|| io::Error::other("the address is in no mapped file"))
}
