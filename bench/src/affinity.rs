//! CPU affinity: the load runs on the last CPU, all other processes of the benchmark on the others.
//!
//! A figure describes the CPU of the load. On a machine with one CPU, the figures include the
//! reader's time, and the report states it.

use std::io;

/// Returns the CPU of the load.
pub(crate) fn load_cpu() -> usize {
    cpus().last().copied().unwrap_or(0)
}

/// Lists the CPUs that this process may use, in order.
pub(crate) fn cpus() -> Vec<usize> {
    let mut set = empty();
    // SAFETY: `set` has the size that is passed, and only the kernel writes it.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result != 0 {
        return vec![0];
    }
    // SAFETY: the index is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Returns the number of online CPUs.
pub(crate) fn online() -> usize {
    // SAFETY: no memory is passed.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}

/// Binds the calling thread to these CPUs; threads and processes that it starts inherit them.
pub(crate) fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = empty();
    for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index is below the set's size.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` has the size that is passed, and is only read.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the priority of this process, if the kernel allows it: less noise, the same figure.
pub(crate) fn prefer_this_process() {
    // SAFETY: no memory is passed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) };
}

/// Lists the CPUs other than the load's, or all CPUs if there is only one.
pub(crate) fn other_cpus() -> Vec<usize> {
    let all = cpus();
    let others: Vec<usize> = all.iter().copied().filter(|cpu| *cpu != load_cpu()).collect();
    if others.is_empty() { all } else { others }
}

fn empty() -> libc::cpu_set_t {
    // SAFETY: a bit set; all zero is the empty one.
    unsafe { std::mem::zeroed() }
}
