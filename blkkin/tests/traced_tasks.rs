//! Propagation of tracing: a command's descendants and threads are traced, and no other task is.
//!
//! *Input*: scripts of a known number of children, threads and execs. The expected tasks are those
//! that the test itself creates.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::ptr::{null, null_mut};

use blkkin_tracer::{AttachKind, TracerConfig};
use blkkin_wire::event::{SyscallOutcome, TaskChange};
use blkkin_wire::ids::{Pid, TaskId, Tid};
use serde_json::Value;

use crate::common;
use crate::support::gated_process::GatedProcess;
use crate::support::needs;
use crate::support::recording::{Recorder, assert_calls_not_lost, record, record_one};
use crate::support::single_process::{c_path, create_file, file_of, record_process};
use crate::support::tools::identity;

const CHILDREN: usize = 200;
/// Children that wait for their first time slice together.
const UNBORN: usize = 4_500;

#[test]
fn all_children_of_a_script_and_no_other_task() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (wanted, other) = (create_file(folder.path(), "wanted", 1), create_file(folder.path(), "other", 1));
    let script = format!("{} wait", format!("cat {} & ", wanted.display()).repeat(CHILDREN));
    let mut shell = GatedProcess::program(&["sh", "-c", &script], &folder.path().join("out"));
    let other_name = c_path(&other);
    // An untraced process that opens files at the same time.
    let mut untraced = GatedProcess::new(move || {
        for _ in 0..1000 {
            // SAFETY: a string that outlives the calls.
            unsafe { libc::close(libc::open(other_name.as_ptr(), libc::O_RDONLY)) };
        }
        0
    });
    untraced.release();
    let recording = record_one(&mut shell);
    assert_eq!(untraced.run_to_exit(), 0);
    recording.assert_calls_complete();
    let openers: HashSet<TaskId> = recording
        .calls_named("openat")
        .into_iter()
        .filter(|call| file_of(call) == Some(identity(&wanted)))
        .map(|call| call.task.id)
        .collect();
    assert_eq!(openers.len(), CHILDREN);
    let changed = |change| recording.tasks().filter(move |task| task.change == change);
    assert_eq!(changed(TaskChange::Forked).count(), CHILDREN);
    // The children, and the shell.
    assert_eq!(changed(TaskChange::Exited).count(), CHILDREN + 1);
    let forked: HashSet<TaskId> = changed(TaskChange::Forked).map(|task| task.task.id).collect();
    assert_eq!(openers, forked);
    let parents: HashSet<_> = changed(TaskChange::Forked).map(|task| task.parent).collect();
    assert_eq!(parents.len(), 1, "one shell forked them all: {parents:?}");
    assert!(recording.calls().all(|call| file_of(call) != Some(identity(&other))));
    let untraced_pid = untraced.pid();
    assert!(recording.tasks().all(|task| task.pid != untraced_pid));
}

/// Children that have not run yet are more than a table of 4,096 entries has room for. Without typed
/// task pointers (raw_tp) the kernel side knows such a child by its tid alone.
#[test]
fn children_that_have_not_run_yet_are_traced_by_each_kind() {
    needs!();
    for kind in ["raw_tp", "tp_btf"] {
        let config = TracerConfig { attach: AttachKind::by_name(kind), ..TracerConfig::default() };
        let recording = record(&config, &mut [&mut GatedProcess::new(fork_before_any_runs)]);
        recording.assert_calls_complete();
        assert_eq!(recording.calls_named("lseek").len(), UNBORN, "{kind}");
    }
}

/// Forks [`UNBORN`] children that call lseek once, on one CPU, which no child gets before the last
/// one is forked.
fn fork_before_any_runs() -> i32 {
    // SAFETY: system calls with structures of this frame; a child uses no memory of another thread.
    unsafe {
        let mut cpu: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut cpu);
        let parameters = libc::sched_param { sched_priority: 1 };
        let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
        if libc::sched_setaffinity(0, size_of_val(&cpu), &cpu) != 0
            || libc::sched_setscheduler(0, policy, &parameters) != 0
        {
            return 1;
        }
        for _ in 0..UNBORN {
            match libc::fork() {
                0 => {
                    libc::lseek(0, 0, libc::SEEK_CUR);
                    libc::_exit(0);
                }
                -1 => return 2,
                _ => {}
            }
        }
        while libc::wait(null_mut()) > 0 {}
    }
    0
}

/// A system call by the 32-bit table, which any program can make, is not traced. It is a loss.
#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_the_32_bit_table_are_counted_as_lost() {
    needs!();
    const CALLS: u64 = 10;
    let recording = record(
        &TracerConfig::default(),
        &mut [&mut GatedProcess::new(|| {
            for _ in 0..CALLS {
                // close(-1), number 6 of the 32-bit table; 6 of the other one is lstat.
                let mut result: i32 = 6;
                // SAFETY: no memory is passed; the kernel clears r8 to r11.
                unsafe {
                    std::arch::asm!(
                        "xchg rbx, {descriptor}", "int 0x80", "xchg rbx, {descriptor}",
                        descriptor = inout(reg) u64::from(u32::MAX) => _,
                        inout("eax") result, in("ecx") 0, in("edx") 0,
                        out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                    );
                }
                if result != -libc::EBADF {
                    return 1;
                }
            }
            0
        })],
    );
    assert_eq!((recording.stats.calls_compat, recording.stats.lost()), (CALLS, CALLS));
}

/// Counts the children with the binary, which marks itself and not the command.
#[test]
fn run_counts_all_children_of_a_script() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let wanted = create_file(folder.path(), "wanted", 1);
    let script = format!("{} wait", format!("cat {} & ", wanted.display()).repeat(CHILDREN));
    let report = folder.path().join("report.json");
    let json = format!("--json={}", report.display());
    common::run(&["run", &json, "--path", wanted.to_str().unwrap(), "--", "sh", "-c", &script])
        .expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let opens = report["calls"].as_array().unwrap().iter().find(|row| row["call"] == "openat").unwrap();
    assert_eq!(opens["count"], CHILDREN, "{opens:#}");
    assert_calls_not_lost(&report["losses"]);
}

/// A task that is marked while it runs has made no call yet that would give it an id.
#[test]
fn a_marked_task_that_execs_first_has_an_id() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let mut cat = GatedProcess::program(&["cat", "/dev/null"], &folder.path().join("out"));
    let recording = record_one(&mut cat);
    let tasks: HashSet<TaskId> = recording.tasks().map(|task| task.task.id).collect();
    assert_eq!(tasks.len(), 1, "one task: {tasks:?}");
    assert!(!tasks.contains(&TaskId(0)));
}

#[test]
fn threads_are_tasks_of_one_process() {
    needs!();
    const THREADS: usize = 8;
    const READS: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let data = create_file(folder.path(), "data", 1);
    let name = c_path(&data);
    let recording = record_process(move || {
        // SAFETY: a string that outlives the call.
        let fd = unsafe { libc::open(name.as_ptr(), libc::O_RDONLY) };
        let threads =
            [(); THREADS].map(|()| std::thread::spawn(move || (0..READS).for_each(|_| read_one(fd))));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        0
    });
    let reads = recording.calls_named("pread64");
    assert_eq!(reads.len(), THREADS * READS);
    let tasks: HashSet<TaskId> = reads.iter().map(|read| read.task.id).collect();
    let ids: HashSet<(Pid, Tid)> =
        reads.iter().map(|read| recording.task_of(read)).map(|task| (task.pid, task.tid)).collect();
    let processes: HashSet<Pid> = ids.iter().map(|(pid, _)| *pid).collect();
    assert_eq!((tasks.len(), ids.len(), processes.len()), (THREADS, THREADS, 1));
}

/// A thread other than the leader that calls exec takes the leader's number and stays the same
/// task.
#[test]
fn a_thread_that_execs_keeps_its_task_while_its_number_changes() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let data = create_file(folder.path(), "data", 1);
    let (name, cat) = (c_path(&data), CString::new("cat").unwrap());
    let recording = record_process(move || {
        // SAFETY: strings that outlive the calls; the list ends with null.
        unsafe {
            let fd = libc::open(name.as_ptr(), libc::O_RDONLY);
            let null_device = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
            libc::dup2(null_device, 1);
            let thread = std::thread::spawn(move || {
                read_one(fd);
                let args = [cat.as_ptr(), name.as_ptr(), null()];
                libc::execvp(cat.as_ptr(), args.as_ptr());
            });
            let _ = thread.join();
        }
        1
    });
    let read = recording
        .calls_named("pread64")
        .into_iter()
        .find(|call| file_of(call) == Some(identity(&data)))
        .unwrap();
    let before = recording.task_of(read);
    assert_ne!(before.tid.0, before.pid.0, "the thread is not the leader");
    let opens = recording.calls_named("openat");
    // The process's own open, and the one of `cat`.
    let open = opens.into_iter().filter(|call| file_of(call) == Some(identity(&data))).nth(1).unwrap();
    let after = recording.task_of(open);
    assert_eq!(open.task.id, read.task.id);
    assert!(open.task.version > read.task.version);
    assert_eq!((after.pid, after.tid.0, &*after.comm), (before.pid, before.pid.0, "cat"));
    let execs: Vec<_> = recording.tasks().filter(|task| task.change == TaskChange::Execed).collect();
    assert_eq!(execs.len(), 1);
    assert_eq!(execs[0].task.id, read.task.id);
}

/// exit_group interrupts the calls of the other threads by a signal. Each still has its sys_exit,
/// with the kernel's own ERESTARTSYS (include/linux/errno.h), which no program ever receives.
#[test]
fn a_call_interrupted_by_the_exit_of_its_process_still_returns() {
    needs!();
    let recording = record_process(|| {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // SAFETY: no arguments.
            sender.send(unsafe { libc::gettid() }).unwrap();
            block_forever(ends[0]);
        });
        wait_until_inside(&format!("/proc/self/task/{}", receiver.recv().unwrap()), ends[0]);
        0
    });
    let interrupted: Vec<_> =
        recording.calls().filter(|call| call.outcome == SyscallOutcome::Returned(-512)).collect();
    assert_eq!(interrupted.len(), 1, "{interrupted:#?}");
    assert_eq!(interrupted[0].call.name(), "read");
    let stats = &recording.stats;
    assert_eq!((stats.calls_entered, stats.calls_incomplete), (stats.calls.fired, 0), "{stats:#?}");
}

#[test]
fn a_call_that_is_open_when_tracing_ends_is_counted() {
    needs!();
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let mut process = GatedProcess::new(move || {
        block_forever(ends[0]);
        0
    });
    let recorder = Recorder::start(&TracerConfig::default(), &[process.pid()]);
    process.release();
    wait_until_inside(&format!("/proc/{}", process.pid().0), ends[0]);
    let recording = recorder.finish();
    recording.assert_balanced();
    let stats = &recording.stats;
    assert_eq!((stats.calls_entered, stats.calls.fired, stats.lost()), (1, 0, 0), "{stats:#?}");
}

/// Reads from a pipe that has no writer.
fn block_forever(pipe: i32) {
    // SAFETY: one byte; the call does not come back.
    unsafe { libc::read(pipe, [0u8].as_mut_ptr().cast(), 1) };
}

/// Waits until the task sleeps in a read of this descriptor: `syscall` then begins with its number
/// and argument.
fn wait_until_inside(task: &str, pipe: i32) {
    let call = format!("{} {pipe:#x} ", libc::SYS_read);
    while !fs::read_to_string(format!("{task}/syscall")).unwrap().starts_with(&call) {}
}

fn read_one(fd: i32) {
    // SAFETY: one byte that outlives the call.
    unsafe { libc::pread(fd, [0u8].as_mut_ptr().cast(), 1, 0) };
}
