//! Whose contexts are found and believed: by what a tracer may do, by what it was told, and by what becomes of a process.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_tracer::{ContextPolicy, ProcessMatcher, TracerConfig};
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::Uid;

use support::actor::Actor;
use support::context::Programs;
use support::live::eventually;
use support::metrics::{address, get, value};
use support::recording::{Recorder, Recording};
use support::service::Service;
use support::{needs, or_skip};

const NOBODY: u32 = 65534;
const CALLS: usize = 100;
/// With room for all calls at once.
const RING: usize = 64 << 20;

/// A folder that everybody may look into.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// A copy of a program, where everybody may execute it.
fn copy(programs: &Programs, folder: &Path, name: &str) -> PathBuf {
    let to = folder.join(name);
    fs::copy(programs.program(), &to).unwrap();
    to
}

/// `writer.c`'s words: calls until `go` is there, and then a few for two spans.
fn writer(program: &Path, go: &Path) -> Vec<String> {
    let text = |path: &Path| path.display().to_string();
    let mut words = vec![text(program), text(program), "-".to_owned(), text(go)];
    words.extend(["2", "2", "50", "1"].map(str::to_owned));
    words
}

/// The same by a user who has no right.
fn by_nobody(words: Vec<String>) -> Vec<String> {
    let become_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    become_nobody.into_iter().map(str::to_owned).chain(words).collect()
}

fn config(contexts: ContextPolicy) -> TracerConfig {
    TracerConfig { contexts, ring_bytes: Some(RING), ..TracerConfig::default() }
}

/// The calls of `writer.c` and `changes.c` themselves, and not the loader's.
fn own_calls(recording: &Recording) -> Vec<&SyscallEvent> {
    let mut calls = recording.named("pread64");
    calls.retain(|call| call.args[2] == 1);
    calls
}

#[test]
fn only_those_are_believed_who_are_named() {
    needs!("setpriv");
    let programs = or_skip!(Programs::of("own"));
    let folder = open_folder();
    let [of_root, of_nobody] = ["root", "nobody"].map(|name| copy(&programs, folder.path(), name));
    let go = folder.path().join("go");
    for (who, believed) in [
        (ProcessMatcher::User(0), 0),
        (ProcessMatcher::User(NOBODY), NOBODY),
        (ProcessMatcher::Executable(of_root.clone()), 0),
        (ProcessMatcher::Executable(of_nobody.clone()), NOBODY),
    ] {
        let _ = fs::remove_file(&go);
        let words = [writer(&of_root, &go), by_nobody(writer(&of_nobody, &go))];
        let mut actors = [0, 1].map(|n| Actor::program(&words[n], &folder.path().join(format!("{n}.out"))));
        let pids = [actors[0].pid(), actors[1].pid()];
        let recorder = Recorder::start(&config(ContextPolicy::Only(vec![who.clone()])), &pids);
        actors.iter_mut().for_each(Actor::release);
        assert!(eventually(|| recorder.in_contexts() > 0), "{who:?}: {}", actors[0].said());
        // Whoever is believed is known, and of whoever is not there have been calls as well.
        fs::write(&go, "").unwrap();
        for actor in &mut actors {
            assert_eq!(actor.play(), 0, "{who:?}: {}", actor.said());
        }
        let recording = recorder.finish();
        recording.assert_balanced();
        let mut seen = [0, 0];
        for call in own_calls(&recording) {
            let of = recording.task_of(call).uid;
            seen[usize::from(of != Uid(believed))] += 1;
            // `writer.c`: a call for no span says 0, and until it is known it says AWAITED.
            let below = call.context.is_some();
            assert!(!below || of == Uid(believed), "{who:?}: {call:#?}");
            let must = of == Uid(believed) && (1..1 << 40).contains(&call.args[3]);
            assert!(below || !must, "{who:?}: {call:#?}");
        }
        assert!(seen.iter().all(|calls| *calls > 2 * CALLS), "{seen:?}");
        assert_eq!(recording.accounts.contexts_denied, 0);
    }
}

#[test]
fn where_nobody_is_believed_nothing_is_read() {
    needs!();
    let programs = or_skip!(Programs::of("own"));
    let folder = open_folder();
    let program = copy(&programs, folder.path(), "own");
    let go = folder.path().join("go");
    fs::write(&go, "").unwrap();
    let mut actor = Actor::program(&writer(&program, &go), &folder.path().join("out"));
    let recorder = Recorder::start(&config(ContextPolicy::None), &[actor.pid()]);
    assert_eq!(actor.play(), 0, "{}", actor.said());
    let recording = recorder.finish();
    assert!(own_calls(&recording).len() > 2 * CALLS);
    assert!(recording.calls().all(|call| call.context.is_none()));
    let books = &recording.accounts;
    assert_eq!((books.contexts_publishing, books.contexts_faulted, books.contexts_denied), (0, 0, 0));
}

/// A child has its parent's memory, and by that its place; but not its parent's word once it is another user.
#[test]
fn who_becomes_another_user_is_judged_anew() {
    needs!();
    let programs = or_skip!(Programs::of("changes"));
    let folder = open_folder();
    let [go, then] = ["go", "then"].map(|name| folder.path().join(name));
    let mut words = vec![programs.program(), programs.program()];
    words.extend([&go, &then].map(|path| path.display().to_string()));
    words.extend([NOBODY.to_string(), CALLS.to_string()]);
    let mut actor = Actor::program(&words, &folder.path().join("out"));
    let recorder =
        Recorder::start(&config(ContextPolicy::Only(vec![ProcessMatcher::User(0)])), &[actor.pid()]);
    actor.release();
    assert!(eventually(|| recorder.in_contexts() > 0), "{}", actor.said());
    fs::write(&go, "").unwrap();
    let judged = eventually(|| recorder.outside(7) > 0);
    assert!(judged, "the child is believed as its parent is: {}", actor.said());
    fs::write(&then, "").unwrap();
    assert_eq!(actor.play(), 0, "{}", actor.said());
    let recording = recorder.finish();
    recording.assert_balanced();
    let calls = own_calls(&recording);
    let of = |span| calls.iter().filter(move |call| call.args[3] == span);
    assert_eq!(of(9).filter(|call| call.context.is_none()).count(), CALLS);
    assert_eq!(of(9).count(), CALLS);
    // Its parent is who it was.
    let last = of(1 << 40).rev().take(CALLS);
    assert!(last.clone().all(|call| call.context.is_some()), "{:#?}", last.collect::<Vec<_>>());
}

/// The agent as the unit in configs/ starts it, with these capabilities.
fn agent(folder: &Path, capabilities: &str) -> Service {
    let out = folder.join(format!("out{capabilities}"));
    fs::create_dir(&out).unwrap();
    chown(&out, Some(NOBODY), None).unwrap();
    let by = |words: Vec<String>| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
            command.arg(format!("{set}=-all,{capabilities}"));
        }
        command.arg("--").arg(folder.join("blkkin")).args(words);
        command
    };
    let words = ["agent", "--metrics", "127.0.0.1:0", "--syscall", "pread64,mmap", "--record"];
    let words = words.into_iter().map(str::to_owned).chain([out.display().to_string()]).collect();
    Service::start_by(folder, capabilities, &[], |_| by(words))
}

/// A process of root's, which another user may look at with CAP_SYS_PTRACE alone.
#[test]
fn without_the_right_to_look_that_is_said_and_counted() {
    needs!("setpriv");
    let programs = or_skip!(Programs::of("own"));
    let folder = open_folder();
    common::for_nobody(folder.path());
    let go = folder.path().join("go");
    let program = copy(&programs, folder.path(), "own");
    let mut actor = Actor::program(&writer(&program, &go), &folder.path().join("out"));
    actor.release();
    let said = "thread contexts of other users' processes cannot be read";
    let mut denied_without = 0.0;
    for (capabilities, may) in [("+bpf,+perfmon", false), ("+bpf,+perfmon,+sys_ptrace", true)] {
        let agent = agent(folder.path(), capabilities);
        agent.says("tracing; events go to", std::time::Duration::from_secs(60));
        assert_eq!(agent.said().contains(said), !may, "{}", agent.said());
        assert_eq!(agent.said().contains("CAP_SYS_PTRACE is missing"), !may, "{}", agent.said());
        let figures = || {
            let metrics = get(address(&agent.said()), "/metrics");
            let skipped = "blkkin_contexts_processes_skipped_total{reason=\"permission denied\"}";
            (value(&metrics, "blkkin_contexts_processes"), value(&metrics, skipped))
        };
        // Some process may be protected by itself, from whomever.
        let as_expected = || match figures() {
            (publish, denied) if may => publish == 1.0 && denied < denied_without,
            (publish, denied) => publish == 0.0 && denied >= 1.0,
        };
        assert!(eventually(as_expected), "{capabilities}: {:?}", figures());
        denied_without = figures().1;
        let (status, said) = agent.finish();
        assert_eq!(status, Some(0), "{said}");
        // And whoever asks beforehand.
        let mut doctor = Command::new("setpriv");
        doctor.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
            doctor.arg(format!("{set}=-all,{capabilities}"));
        }
        let doctor = doctor.arg("--").arg(folder.path().join("blkkin")).arg("doctor").output().unwrap();
        let words = String::from_utf8_lossy(&doctor.stdout).into_owned();
        let line = words.lines().find(|line| line.contains("thread contexts")).unwrap();
        assert_eq!(line.trim_start().starts_with("ok"), may, "{words}");
    }
    fs::write(&go, "").unwrap();
    assert_eq!(actor.play(), 0, "{}", actor.said());
}
