//! Processes with thread contexts that are read: by the policy, by the tracer's capabilities, and by
//! the user that a process becomes.
//!
//! *Input*: `writer.c` and `user_change.c`, run as root and as an unprivileged user, under a tracer
//! or an agent with reduced capabilities. *Independent count*: each call's offset encodes the span
//! that it belongs to, and the user of each process is known.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_tracer::{ContextPolicy, ProcessMatcher, TracerConfig};
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::Uid;

use crate::common;
use crate::support::context::Programs;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::metrics::{address, get, value};
use crate::support::recording::{Recorder, Recording};
use crate::support::service::Service;
use crate::support::{needs, or_skip};

const UNPRIVILEGED: u32 = 65534;
const CALLS: usize = 100;
/// Ring size with room for all calls at once.
const RING: usize = 64 << 20;

/// Creates a folder that every user may enter.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Copies the program to a folder where every user may execute it.
fn copy(programs: &Programs, folder: &Path, name: &str) -> PathBuf {
    let copy = folder.join(name);
    fs::copy(programs.program(), &copy).unwrap();
    copy
}

/// Returns the arguments of `writer.c`: a warm-up until `go` exists, then a few calls for two
/// spans.
fn writer(program: &Path, go: &Path) -> Vec<String> {
    let text = |path: &Path| path.display().to_string();
    let mut args = vec![text(program), text(program), "-".to_owned(), text(go)];
    args.extend(["2", "2", "50", "1"].map(str::to_owned));
    args
}

/// Returns a command that runs the arguments as an unprivileged user.
fn as_unprivileged(args: Vec<String>) -> Vec<String> {
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    setpriv.into_iter().map(str::to_owned).chain(args).collect()
}

fn config(contexts: ContextPolicy) -> TracerConfig {
    TracerConfig { contexts, ring_bytes: Some(RING), ..TracerConfig::default() }
}

/// Returns the calls of `writer.c` and `user_change.c`, without those of the dynamic loader.
fn own_calls(recording: &Recording) -> Vec<&SyscallEvent> {
    let mut calls = recording.calls_named("pread64");
    calls.retain(|call| call.args[2] == 1);
    calls
}

#[test]
fn only_named_processes_are_trusted() {
    needs!("setpriv");
    let programs = or_skip!(Programs::of("own"));
    let folder = open_folder();
    let [root_program, user_program] = ["root", "nobody"].map(|name| copy(&programs, folder.path(), name));
    let go = folder.path().join("go");
    for (matcher, trusted_user) in [
        (ProcessMatcher::User(0), 0),
        (ProcessMatcher::User(UNPRIVILEGED), UNPRIVILEGED),
        (ProcessMatcher::Executable(root_program.clone()), 0),
        (ProcessMatcher::Executable(user_program.clone()), UNPRIVILEGED),
    ] {
        let _ = fs::remove_file(&go);
        let args = [writer(&root_program, &go), as_unprivileged(writer(&user_program, &go))];
        let mut processes =
            [0, 1].map(|n| GatedProcess::program(&args[n], &folder.path().join(format!("{n}.out"))));
        let pids = [processes[0].pid(), processes[1].pid()];
        let recorder = Recorder::start(&config(ContextPolicy::Only(vec![matcher.clone()])), &pids);
        processes.iter_mut().for_each(GatedProcess::release);
        assert!(eventually(|| recorder.calls_with_context() > 0), "{matcher:?}: {}", processes[0].output());
        // The trusted process has a context now, and the other process has made calls too.
        fs::write(&go, "").unwrap();
        for process in &mut processes {
            assert_eq!(process.run_to_exit(), 0, "{matcher:?}: {}", process.output());
        }
        let recording = recorder.finish();
        recording.assert_balanced();
        let mut seen = [0, 0];
        for call in own_calls(&recording) {
            let of = recording.task_of(call).uid;
            seen[usize::from(of != Uid(trusted_user))] += 1;
            // In `writer.c` a call for no span has offset 0, and a call of the warm-up has WARM_UP.
            let has_context = call.context.is_some();
            assert!(!has_context || of == Uid(trusted_user), "{matcher:?}: {call:#?}");
            let expects_context = of == Uid(trusted_user) && (1..1 << 40).contains(&call.args[3]);
            assert!(has_context || !expects_context, "{matcher:?}: {call:#?}");
        }
        assert!(seen.iter().all(|calls| *calls > 2 * CALLS), "{seen:?}");
        assert_eq!(recording.stats.contexts_denied, 0);
    }
}

#[test]
fn without_trusted_processes_nothing_is_read() {
    needs!();
    let programs = or_skip!(Programs::of("own"));
    let folder = open_folder();
    let program = copy(&programs, folder.path(), "own");
    let go = folder.path().join("go");
    fs::write(&go, "").unwrap();
    let mut process = GatedProcess::program(&writer(&program, &go), &folder.path().join("out"));
    let recorder = Recorder::start(&config(ContextPolicy::None), &[process.pid()]);
    assert_eq!(process.run_to_exit(), 0, "{}", process.output());
    let recording = recorder.finish();
    assert!(own_calls(&recording).len() > 2 * CALLS);
    assert!(recording.calls().all(|call| call.context.is_none()));
    let stats = &recording.stats;
    assert_eq!((stats.contexts_publishing, stats.contexts_faulted, stats.contexts_denied), (0, 0, 0));
}

/// A child inherits its parent's memory with the slot, but is not trusted as its parent once it is
/// another user.
#[test]
fn a_process_that_changes_its_user_is_matched_again() {
    needs!();
    let programs = or_skip!(Programs::of("user-change"));
    let folder = open_folder();
    let [go, second_go] = ["go", "then"].map(|name| folder.path().join(name));
    let mut args = vec![programs.program(), programs.program()];
    args.extend([&go, &second_go].map(|path| path.display().to_string()));
    args.extend([UNPRIVILEGED.to_string(), CALLS.to_string()]);
    let mut process = GatedProcess::program(&args, &folder.path().join("out"));
    let recorder =
        Recorder::start(&config(ContextPolicy::Only(vec![ProcessMatcher::User(0)])), &[process.pid()]);
    process.release();
    assert!(eventually(|| recorder.calls_with_context() > 0), "{}", process.output());
    fs::write(&go, "").unwrap();
    let revoked = eventually(|| recorder.calls_outside(7) > 0);
    assert!(revoked, "the child is trusted as its parent is: {}", process.output());
    fs::write(&second_go, "").unwrap();
    assert_eq!(process.run_to_exit(), 0, "{}", process.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    let calls = own_calls(&recording);
    let of = |span| calls.iter().filter(move |call| call.args[3] == span);
    assert_eq!(of(9).filter(|call| call.context.is_none()).count(), CALLS);
    assert_eq!(of(9).count(), CALLS);
    // Its parent is still trusted.
    let last = of(1 << 40).rev().take(CALLS);
    assert!(last.clone().all(|call| call.context.is_some()), "{:#?}", last.collect::<Vec<_>>());
}

/// Starts the agent with these capabilities, as the unit in configs/ does.
fn agent(folder: &Path, capabilities: &str) -> Service {
    let out = folder.join(format!("out{capabilities}"));
    fs::create_dir(&out).unwrap();
    chown(&out, Some(UNPRIVILEGED), None).unwrap();
    let with_capabilities = |args: Vec<String>| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
            command.arg(format!("{set}=-all,{capabilities}"));
        }
        command.arg("--").arg(folder.join("blkkin")).args(args);
        command
    };
    let args = ["agent", "--metrics", "127.0.0.1:0", "--syscall", "pread64,mmap", "--record"];
    let args = args.into_iter().map(str::to_owned).chain([out.display().to_string()]).collect();
    Service::start_with(folder, capabilities, &[], |_| with_capabilities(args))
}

/// A process of root, which another user may inspect only with CAP_SYS_PTRACE.
#[test]
fn a_missing_ptrace_capability_is_reported_and_counted() {
    needs!("setpriv");
    let programs = or_skip!(Programs::of("own"));
    let folder = open_folder();
    common::copy_for_unprivileged(folder.path());
    let go = folder.path().join("go");
    let program = copy(&programs, folder.path(), "own");
    let mut process = GatedProcess::program(&writer(&program, &go), &folder.path().join("out"));
    process.release();
    let message = "thread contexts of other users' processes cannot be read";
    let mut denied_without = 0.0;
    for (capabilities, allowed) in [("+bpf,+perfmon", false), ("+bpf,+perfmon,+sys_ptrace", true)] {
        let agent = agent(folder.path(), capabilities);
        agent.wait_for_output("tracing; events go to", std::time::Duration::from_secs(60));
        assert_eq!(agent.output().contains(message), !allowed, "{}", agent.output());
        assert_eq!(agent.output().contains("CAP_SYS_PTRACE is missing"), !allowed, "{}", agent.output());
        let metrics = || {
            let metrics = get(address(&agent.output()), "/metrics");
            let skipped = "blkkin_contexts_processes_skipped_total{reason=\"permission denied\"}";
            (value(&metrics, "blkkin_contexts_processes"), value(&metrics, skipped))
        };
        // Some process of the machine may be protected from every user.
        let as_expected = || match metrics() {
            (publish, denied) if allowed => publish == 1.0 && denied < denied_without,
            (publish, denied) => publish == 0.0 && denied >= 1.0,
        };
        assert!(eventually(as_expected), "{capabilities}: {:?}", metrics());
        // The scan of all processes may go on.
        assert!(eventually(|| {
            let before = denied_without;
            std::thread::sleep(std::time::Duration::from_secs(1));
            denied_without = metrics().1;
            denied_without == before
        }));
        agent.finish_without_error();
        // The doctor reports the same.
        let mut doctor = Command::new("setpriv");
        doctor.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
            doctor.arg(format!("{set}=-all,{capabilities}"));
        }
        let doctor = doctor.arg("--").arg(folder.path().join("blkkin")).arg("doctor").output().unwrap();
        let table = String::from_utf8_lossy(&doctor.stdout).into_owned();
        let line = table.lines().find(|line| line.contains("thread contexts")).unwrap();
        assert_eq!(line.trim_start().starts_with("ok"), allowed, "{table}");
    }
    fs::write(&go, "").unwrap();
    assert_eq!(process.run_to_exit(), 0, "{}", process.output());
}
