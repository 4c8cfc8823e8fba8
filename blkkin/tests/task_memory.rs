//! Kernel memory of tasks: a task that is not traced has no state in the kernel.
//!
//! *Input*: two programs that open a file and wait in a read, of which a filter accepts one. The
//! kernel's own answer for each task decides whether it has state in task storage.

use std::fs;
use std::path::{Path, PathBuf};

use blkkin_tracer::{Filter, TraceScope, TracerConfig};
use blkkin_wire::ids::{Pid, Tid};

use crate::support::gated_process::GatedProcess;
use crate::support::recording::Recorder;
use crate::support::single_process::c_path;
use crate::support::task_storage::TaskStorage;
use crate::support::tools::kernel;
use crate::support::{needs, skip};

/// Programs that open a file, read it, and have different names.
const PROGRAMS: [&str; 2] = ["cat", "head"];

#[test]
fn a_task_that_a_filter_excludes_has_no_state() {
    needs!();
    let by_pid = |pid| Filter { pids: vec![pid], ..Filter::default() };
    let by_tid = |pid: Pid| Filter { tids: vec![Tid(pid.0)], ..Filter::default() };
    let by_name = |_| Filter { comms: vec![PROGRAMS[0].to_owned()], ..Filter::default() };
    for (kind, filter) in [("pid", &by_pid as &dyn Fn(Pid) -> Filter), ("tid", &by_tid), ("name", &by_name)] {
        let states = while_waiting(PROGRAMS, |[wanted, _]| filter(wanted));
        assert_eq!(states, [true, false], "by {kind}");
    }
}

/// Without a filter every task is traced, except those of the tracer's process: this thread reads
/// files while it waits for the programs.
#[test]
fn the_tracers_own_threads_have_no_state() {
    needs!();
    if kernel() < (6, 9) {
        skip!("this kernel cannot address a single thread (PIDFD_THREAD)");
    }
    assert_eq!(while_waiting(PROGRAMS, |_| Filter::default()), [true, true]);
}

/// A command's trace concerns no other task, whatever it calls.
#[test]
fn a_task_outside_the_traced_tree_has_no_state() {
    needs!();
    let [mut wanted, mut other] = PROGRAMS.map(Reader::new);
    let recorder = Recorder::start(&TracerConfig::default(), &[wanted.process.pid()]);
    let states = states_inside_the_read(&mut wanted, &mut other);
    recorder.finish();
    assert_eq!(states, [true, false]);
}

/// Traces all tasks that pass the filter, and returns whether each program has state while both wait.
fn while_waiting(programs: [&str; 2], filter: impl Fn([Pid; 2]) -> Filter) -> [bool; 2] {
    let [mut wanted, mut other] = programs.map(Reader::new);
    let filter = filter([wanted.process.pid(), other.process.pid()]);
    let config = TracerConfig { scope: TraceScope::All, filter, ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[]);
    let states = states_inside_the_read(&mut wanted, &mut other);
    recorder.finish();
    states
}

fn states_inside_the_read(wanted: &mut Reader, other: &mut Reader) -> [bool; 2] {
    let storage = TaskStorage::of_this_process();
    for reader in [&mut *wanted, &mut *other] {
        reader.process.release();
        reader.wait_until_inside_the_read();
    }
    let states = [wanted.process.pid(), other.process.pid()].map(|pid| storage.has_state_of(pid));
    assert_ne!(storage.has_state_of_this_thread(), Some(true), "the tracer's own thread");
    for reader in [wanted, other] {
        reader.end();
    }
    states
}

/// A program that reads from a FIFO, for whose end it waits.
struct Reader {
    process: GatedProcess,
    /// Keeps the FIFO open, so that the read waits.
    writer: Option<fs::File>,
    folder: tempfile::TempDir,
}

impl Reader {
    fn new(program: &str) -> Reader {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(folder.path());
        let writer = fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        let args = [program, fifo.to_str().unwrap()];
        let process = GatedProcess::program(&args, &folder.path().join("out"));
        Reader { process, writer: Some(writer), folder }
    }

    /// Waits until the program is inside a call on the FIFO: `syscall` then has its descriptor as the
    /// first argument (read) or the second (sendfile, as busybox calls it).
    fn wait_until_inside_the_read(&self) {
        let process = format!("/proc/{}", self.process.pid().0);
        let fifo = fifo_of(self.folder.path());
        let is_fifo = |argument: &str| {
            let fd = u32::from_str_radix(argument.trim_start_matches("0x"), 16);
            fd.is_ok_and(|fd| fs::read_link(format!("{process}/fd/{fd}")).is_ok_and(|path| path == fifo))
        };
        let reads = |text: String| text.split_whitespace().skip(1).take(2).any(is_fifo);
        while !fs::read_to_string(format!("{process}/syscall")).is_ok_and(reads) {
            std::thread::yield_now();
        }
    }

    fn end(&mut self) {
        self.writer = None;
        assert_eq!(self.process.run_to_exit(), 0, "{}", self.process.output());
    }
}

fn fifo_of(folder: &Path) -> PathBuf {
    folder.join("fifo")
}

fn fifo(folder: &Path) -> PathBuf {
    let path = fifo_of(folder);
    let name = c_path(&path);
    // SAFETY: a string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}
