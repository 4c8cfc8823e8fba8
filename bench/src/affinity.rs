//! Which CPU runs what: the load on the last CPU, everything else of ours on the others where there are any.
//!
//! A figure is about the load's CPU. With one CPU only there is no other side to move to, and the figures include
//! what the reader takes; that is said beside them.

use std::io;

/// The CPU on which load is generated.
pub(crate) fn load_cpu() -> usize {
    cpus().last().copied().unwrap_or(0)
}

/// The CPUs that this process may use, in order.
pub(crate) fn cpus() -> Vec<usize> {
    let mut set = empty();
    // SAFETY: `set` is as large as said, and written by the kernel only.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result != 0 {
        return vec![0];
    }
    // SAFETY: the index is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// How many the machine has.
pub(crate) fn online() -> usize {
    // SAFETY: no memory is passed.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}

/// Binds the calling thread to these CPUs; what it starts from now on inherits it.
pub(crate) fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = empty();
    for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index is below the set's size.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` is as large as said, and read only.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets this process run before others on its CPU, where the kernel allows it: less noise, the same figure.
pub(crate) fn prefer_this_process() {
    // SAFETY: no memory is passed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) };
}

/// The CPUs that are not the load's; all of them where there is one only.
pub(crate) fn other_cpus() -> Vec<usize> {
    let all = cpus();
    let others: Vec<usize> = all.iter().copied().filter(|cpu| *cpu != load_cpu()).collect();
    if others.is_empty() { all } else { others }
}

fn empty() -> libc::cpu_set_t {
    // SAFETY: a set of bits: all zero is the empty one.
    unsafe { std::mem::zeroed() }
}
