//! Names that change during a trace: a file's by rename, a program's by exec, and process ids of
//! pid namespaces.
//!
//! *Input*: scripts and processes whose renames, execs and namespaces this test chooses; the
//! namespace ids are those that `stat` prints.

use std::ffi::{CStr, CString};
use std::path::Path;

use blkkin_tracer::{Filter, TraceScope, TracerConfig};
use blkkin_wire::event::LayerEvent;

use crate::support::gated_process::GatedProcess;
use crate::support::needs;
use crate::support::recording::{Recorder, record_one};
use crate::support::single_process::{c_path, create_file, file_of};
use crate::support::tools::identity;

/// A file's path is in the event of the call that opened it, as it was at that time.
#[test]
fn each_open_has_the_path_of_its_time() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let (a, b) = (root.join("a"), root.join("b"));
    let script = format!("echo x > {0}; cat {0}; mv {0} {1}; cat {1}", a.display(), b.display());
    let mut shell = GatedProcess::program(&["sh", "-c", &script], &root.join("out"));
    let recording = record_one(&mut shell);
    recording.assert_calls_complete();
    let target = identity(&b);
    let mut opens: Vec<_> = recording
        .traces
        .iter()
        .filter(|trace| {
            trace.call().is_some_and(|call| call.call.name() == "openat" && file_of(call) == Some(target))
        })
        .collect();
    opens.sort_by_key(|trace| trace.start());
    let output: Vec<_> = opens
        .iter()
        .map(|trace| (trace.call().unwrap().paths[0].as_deref(), trace.names.file.as_ref().map(|f| &*f.path)))
        .collect();
    let expected = [&a, &a, &b].map(|path| (path.to_str(), path.to_str()));
    assert_eq!(output, expected);
}

/// A task that matches a name filter stops matching when it execs a program of another name.
#[test]
fn a_program_of_another_name_is_not_recorded() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (create_file(folder.path(), "before", 1), create_file(folder.path(), "after", 1));
    let mut process = opens_and_execs(c"blkkin-wanted", &before, Path::new("/bin/cat"), &after);
    let paths = paths_opened("blkkin-wanted", &mut process);
    assert_eq!(paths, [c_path(&before)]);
}

/// A task starts to match when it execs a program of the wanted name.
#[test]
fn a_program_of_a_wanted_name_is_recorded_from_its_exec_on() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (create_file(folder.path(), "before", 1), create_file(folder.path(), "after", 1));
    let program = folder.path().join("blkkin-wanted");
    std::fs::copy("/bin/cat", &program).unwrap();
    let mut process = opens_and_execs(c"blkkin-other", &before, &program, &after);
    let paths = paths_opened("blkkin-wanted", &mut process);
    assert!(!paths.contains(&c_path(&before)) && paths.contains(&c_path(&after)), "{paths:?}");
}

/// Creates a process of this name that opens a file and then execs `program`, which opens another.
fn opens_and_execs(name: &'static CStr, before: &Path, program: &Path, after: &Path) -> GatedProcess {
    let (before, program, after) = (c_path(before), c_path(program), c_path(after));
    GatedProcess::with_name(name, move || {
        let args = [program.as_ptr(), after.as_ptr(), std::ptr::null()];
        // SAFETY: strings that outlive the calls.
        unsafe {
            libc::close(libc::open(before.as_ptr(), libc::O_RDONLY));
            // Its output is discarded.
            libc::close(1);
            libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
            libc::execv(program.as_ptr(), args.as_ptr());
        }
        127
    })
}

/// Returns the paths that tasks of this name opened; asserts that nothing else was recorded.
fn paths_opened(name: &str, process: &mut GatedProcess) -> Vec<CString> {
    let filter = Filter { comms: vec![name.to_owned()], ..Filter::default() };
    let recorder =
        Recorder::start(&TracerConfig { scope: TraceScope::All, filter, ..TracerConfig::default() }, &[]);
    assert_eq!(process.run_to_exit(), 0);
    let recording = recorder.finish();
    recording.assert_calls_complete();
    assert!(recording.calls().all(|call| &*recording.task_of(call).comm == name));
    let opens = recording.calls_named("openat").into_iter();
    let paths = opens.filter_map(|call| CString::new(call.paths[0].as_deref()?).ok());
    paths.filter(|path| path.as_c_str() != c"/dev/null").collect()
}

/// Tasks in a pid namespace, and in a namespace inside of that one: the recorded ids are those of
/// the innermost namespace.
#[test]
fn a_task_in_a_container_has_its_namespace_ids() {
    needs!("unshare", "stat");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let print_ids = "echo $$ $(stat -Lc %i /proc/self/ns/pid)";
    let within = "unshare --pid --fork --mount-proc sh -c";
    let script = format!("{print_ids}; {within} '{print_ids}; stat -Lc %i /proc/self/ns/pid'");
    let args = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", &script];
    let mut shell = GatedProcess::program(&args, &out);
    let recording = record_one(&mut shell);
    recording.assert_calls_complete();
    let output = shell.output();
    let namespaces: Vec<u32> = output
        .lines()
        .filter_map(|line| line.strip_prefix("1 "))
        .map(|inode| inode.parse().unwrap())
        .collect();
    let [outer, inner] = namespaces[..] else { panic!("{output}") };
    assert_ne!(outer, inner);
    let tasks = recording.events.iter().filter_map(|event| match event {
        LayerEvent::Task(task) => Some(task),
        _ => None,
    });
    let (mut in_none, mut first, mut others) = (0, Vec::new(), 0);
    for task in tasks {
        let Some(own) = task.ns_ids else {
            in_none += 1;
            continue;
        };
        assert!([outer, inner].contains(&own.pid_ns), "{task:?}: {output}");
        assert_eq!(own.pid.0, own.tid.0, "one thread each: {task:?}");
        assert_ne!(own.pid, task.pid, "{task:?}");
        match own.pid.0 {
            1 => first.push((own.pid_ns, task.pid)),
            _ => others += 1,
        }
    }
    first.sort_unstable();
    first.dedup();
    let mut expected = [outer, inner];
    expected.sort_unstable();
    let found: Vec<u32> = first.iter().map(|(namespace, _)| *namespace).collect();
    assert_eq!(found, expected, "each has one init: {output}");
    assert!(in_none > 0 && others > 0, "unshare is in no namespace, and the shells' children are not init");
}
