//! Kernel memory of a thread, traced or excluded by a filter: a child creates many threads that make
//! one traced system call each, and the kernel's slabs are compared before and after these calls.
//!
//! The threads exist before the first reading, so their stacks and structures do not count.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::RwLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blkkin_tracer::{Filter, TraceScope, TracerConfig};

use crate::broker::child::KillOnDrop;
use crate::harness::{self, RunningTracer};

/// Threads to create; half of kernel.pid_max where that is less, which leaves room for others.
const THREADS: usize = 100_000;
/// Stack of a thread, with this program's thread-local storage.
const STACK_BYTES: usize = 64 << 10;

/// Number of threads, and bytes of slabs that the kernel allocated for each.
pub(super) struct ThreadMemory {
    pub(super) threads: usize,
    pub(super) bytes_each: f64,
}

/// Measures threads while everything that passes `filter` is traced.
pub(super) fn measure(filter: Filter) -> Result<ThreadMemory> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let mut command = Command::new(program);
    command
        .args(["load", "threads", &threads_max()?.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut load = KillOnDrop(command.spawn().context("the load cannot be started")?);
    let mut output = BufReader::new(load.0.stdout.take().context("invariant: stdout is a pipe")?);
    let threads: usize = line(&mut output)?.parse().context("the load printed no number")?;
    let config = TracerConfig { scope: TraceScope::All, filter, ..TracerConfig::default() };
    let tracer = RunningTracer::start(harness::load_tracer_with(&config)?);
    let before = slab_bytes()?;
    let go = load.0.stdin.as_mut().context("invariant: stdin is a pipe")?;
    go.write_all(b"\n")?;
    line(&mut output)?;
    let bytes = slab_bytes()?.saturating_sub(before);
    tracer.finish()?;
    Ok(ThreadMemory { threads, bytes_each: bytes as f64 / threads as f64 })
}

fn threads_max() -> Result<usize> {
    let pids: usize = std::fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().parse()?;
    Ok(THREADS.min(pids / 2))
}

/// Reads a line without its end.
fn line(output: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if output.read_line(&mut line)? == 0 {
        bail!("the load ended");
    }
    Ok(line.trim_end().to_owned())
}

/// Sums the objects in use of the kernel's general slabs, from which task storage is allocated.
fn slab_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/slabinfo").context("/proc/slabinfo (root only)")?;
    let slabs = text.lines().filter(|line| line.starts_with("kmalloc-"));
    let bytes = slabs.filter_map(|line| {
        let mut words = line.split_whitespace().skip(1).map(str::parse::<u64>);
        let (in_use, _, size) = (words.next()?.ok()?, words.next(), words.next()?.ok()?);
        Some(in_use * size)
    });
    Ok(bytes.sum())
}

/// Held by the main thread until the threads may make their calls.
static GATE: RwLock<()> = RwLock::new(());
/// Threads that have made their call.
static CALLED: AtomicUsize = AtomicUsize::new(0);

/// Creates threads, prints their number, lets each make one call after a line of input, and prints a
/// line when all have made it. Ends when it is killed.
pub(crate) fn load(threads: usize) -> Result<()> {
    let Ok(gate) = GATE.write() else { bail!("invariant: no thread panics") };
    let stacks = map_stacks(threads)?;
    let created = (0..threads).take_while(|n| spawn(stacks.wrapping_add(n * STACK_BYTES))).count();
    if created == 0 {
        bail!("no thread can be created");
    }
    println!("{created}");
    std::io::stdin().read_line(&mut String::new())?;
    drop(gate);
    while CALLED.load(Relaxed) < created {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!();
    loop {
        std::thread::park();
    }
}

/// Maps all stacks at once: as many mappings would exceed the kernel's limit (vm.max_map_count).
fn map_stacks(threads: usize) -> Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let stacks = unsafe { libc::mmap(null_mut(), threads * STACK_BYTES, protection, flags, -1, 0) };
    if stacks == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error()).context("the stacks cannot be mapped");
    }
    Ok(stacks as usize)
}

/// Creates a thread on this stack; false if the kernel allows no more.
fn spawn(stack: usize) -> bool {
    // SAFETY: a stack of this mapping that no other thread has; it is never unmapped.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        let mut thread: libc::pthread_t = 0;
        libc::pthread_attr_init(&mut attributes) == 0
            && libc::pthread_attr_setstack(&mut attributes, stack as *mut libc::c_void, STACK_BYTES) == 0
            && libc::pthread_create(&mut thread, &attributes, call_and_wait, null_mut()) == 0
    }
}

extern "C" fn call_and_wait(_: *mut libc::c_void) -> *mut libc::c_void {
    drop(GATE.read());
    // SAFETY: no memory is passed.
    unsafe { libc::lseek(0, 0, libc::SEEK_CUR) };
    CALLED.fetch_add(1, Relaxed);
    loop {
        // SAFETY: no arguments.
        unsafe { libc::pause() };
    }
}
