//! Builds and starts without LTTng: the program has the same functions, starts, and reports the
//! reason.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use support::{
    UserCrate, compile, copy_program, isolate, make, remove_wait_file, succeed, unused_user, without_headers,
};

/// Serializes the tests. They write programs and run them, and a program cannot run while a child
/// of another thread has it open for writing.
static SERIAL: Mutex<()> = Mutex::new(());

/// The builds run in sequence, because they are of one crate in one directory.
#[test]
fn a_build_without_lttng_warns_and_reports_the_reason() {
    let _serial = SERIAL.lock();
    let user_crate = UserCrate::init_result();
    let scratch = tempfile::tempdir().unwrap();

    let compiler = without_headers(scratch.path());
    let cc = ("CC", compiler.to_str().unwrap());
    let stdout = build_without_lttng(
        &user_crate,
        &[cc],
        "built without LTTng-UST: LTTng-UST 2.13 or later is not installed",
    );
    println!("without headers: {stdout}");
    build_required(&user_crate, &[cc], "liblttng-ust-dev");

    build_without_lttng(&user_crate, &[("DOCS_RS", "1")], "built without LTTng-UST: docs.rs has no LTTng");
    build_required(&user_crate, &[("DOCS_RS", "1")], "docs.rs has no LTTng");
    succeed(
        user_crate.cargo(&["doc", "-p", "blkkin-ust", "--no-deps"]).env("DOCS_RS", "1").output().unwrap(),
    );

    let is_static = ("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    build_without_lttng(
        &user_crate,
        &[is_static],
        "built without LTTng-UST: a static executable cannot load LTTng's library",
    );
    assert_eq!(publishing(&user_crate.program("debug")), NOT_EXPORTED);

    let no_compiler = ("CC", "/nonexistent/cc");
    build_without_lttng(&user_crate, &[no_compiler], "built without LTTng-UST: no C compiler");

    check_unsupported_targets(&user_crate);
    with_the_probe(&user_crate, scratch.path());
}

/// Runs the build script for targets whose standard library may not be installed.
fn check_unsupported_targets(user_crate: &UserCrate) {
    let script = user_crate.build_script();
    let run = |libc: &str, system: &str, ust: &str| {
        let mut script = Command::new(&script);
        script.env("CARGO_CFG_TARGET_OS", system).env("CARGO_CFG_TARGET_ENV", libc).env("BLKKIN_UST", ust);
        let output = script.env("TARGET", format!("x-{system}-{libc}")).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    for (libc, system) in [("musl", "linux"), ("", "macos")] {
        let (succeeded, stdout) = run(libc, system, "");
        assert!(succeeded && !stdout.contains("rustc-cfg=blkkin_probe"), "{stdout}");
        assert_eq!(stdout.matches("cargo::warning=").count(), 1, "{stdout}");
        assert!(stdout.contains(&format!("this is x-{system}-{libc}")), "{stdout}");
        let (succeeded, stdout) = run(libc, system, "require");
        assert!(!succeeded && stdout.contains("cargo::error="), "{stdout}");
    }
}

#[test]
fn it_builds_for_musl() {
    let _serial = SERIAL.lock();
    let user_crate = UserCrate::init_result();
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let libdir =
        Command::new("rustc").args(["--print", "target-libdir", "--target", &target]).output().unwrap();
    if !Path::new(String::from_utf8(libdir.stdout).unwrap().trim()).exists() {
        return println!("skipped: no standard library for {target}");
    }
    let exports = "-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
    for (flags, publishes) in [("", NOT_EXPORTED), (exports, "ok")] {
        succeed(user_crate.cargo(&["build", "--target", &target]).env("RUSTFLAGS", flags).output().unwrap());
        let program = user_crate.program(&format!("{target}/debug"));
        let stdout = init_result(&program, "");
        assert!(stdout.starts_with("built without LTTng-UST: LTTng-UST is for Linux with glibc"), "{stdout}");
        assert_eq!(publishing(&program), publishes, "{flags}");
    }
}

const NOT_EXPORTED: &str = "this static executable does not export otel_thread_ctx_v1: link it with \
    -Wl,--export-dynamic-symbol=otel_thread_ctx_v1";

/// Runs the program with `publishing`, and returns its output.
fn publishing(program: &Path) -> String {
    succeed(Command::new(program).arg("publishing").env("BLKKIN_UST", "0").output().unwrap())
        .trim()
        .to_owned()
}

/// Builds with the probe, and runs with and without LTTng's library.
fn with_the_probe(user_crate: &UserCrate, scratch: &Path) {
    if let Some(reason) = probe_warning(user_crate) {
        return println!("skipped: {reason}");
    }
    let program = user_crate.build("debug");
    assert_eq!(init_result(&program, ""), "ok");
    let stdout = init_result(&program, "0");
    assert_eq!(stdout, "switched off by BLKKIN_UST=0");
    let stdout = init_result(&without_library(&program, scratch), "");
    let missing = "liblttng-not.so.1: cannot open shared object file: No such file or directory";
    assert_eq!(stdout, format!("cannot load LTTng-UST: {missing}"));
    // The executable itself does not link to LTTng.
    let needed = succeed(Command::new("readelf").args(["-d"]).arg(&program).output().unwrap());
    assert!(!needed.contains("lttng"), "{needed}");
}

/// Copies `program` with a probe that needs a library that does not exist.
fn without_library(program: &Path, scratch: &Path) -> PathBuf {
    let (library, missing_library) = (b"liblttng-ust.so.1\0", b"liblttng-not.so.1\0");
    let mut bytes = fs::read(program).unwrap();
    let offsets: Vec<usize> =
        (0..bytes.len() - library.len()).filter(|&offset| bytes[offset..].starts_with(library)).collect();
    assert_eq!(offsets.len(), 1);
    bytes[offsets[0]..offsets[0] + library.len()].copy_from_slice(missing_library);
    let copy = scratch.join("without-library");
    fs::copy(program, &copy).unwrap();
    fs::write(&copy, bytes).unwrap();
    copy
}

/// Returns the warning if this machine cannot build the probe.
fn probe_warning(user_crate: &UserCrate) -> Option<String> {
    let output = user_crate.cargo(&["build"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    stderr.lines().find(|line| line.contains("is built without LTTng-UST")).map(str::to_owned)
}

/// Builds with these variables, expects one warning, and runs the program.
fn build_without_lttng(user_crate: &UserCrate, variables: &[(&str, &str)], expected: &str) -> String {
    let output = user_crate.cargo(&["build"]).envs(variables.iter().copied()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    succeed(output);
    let warnings = stderr.matches("is built without LTTng-UST, nothing will be traced").count();
    assert_eq!(warnings, 1, "{stderr}");
    // The compiler must not warn about unused code in this configuration.
    let others =
        stderr.lines().filter(|line| line.starts_with("warning") || line.starts_with("error")).count();
    assert_eq!(others, 1, "{stderr}");
    let stdout = init_result(&user_crate.program("debug"), "");
    assert!(stdout.starts_with(expected), "{stdout}");
    stdout
}

/// Builds with these variables and `BLKKIN_UST=require`, and expects an error with the reason.
fn build_required(user_crate: &UserCrate, variables: &[(&str, &str)], expected: &str) {
    let mut cargo = user_crate.cargo(&["build"]);
    let output = cargo.envs(variables.iter().copied()).env("BLKKIN_UST", "require").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("which BLKKIN_UST=require asks for") && stderr.contains(expected), "{stderr}");
}

/// Returns the program's result of `init`, which takes less than a second without a session daemon.
fn init_result(program: &Path, ust: &str) -> String {
    let stdout = run(program, ust);
    let (init_result, took) = stdout.trim_end().rsplit_once('\n').unwrap();
    let took = Duration::from_micros(took.parse().unwrap());
    println!("{init_result}: {took:?}");
    assert!(took < Duration::from_secs(1));
    init_result.to_owned()
}

/// Runs the program with this `BLKKIN_UST` and without waiting for a session daemon, and returns
/// its output.
fn run(program: &Path, ust: &str) -> String {
    // A folder that its user can read: the build may be in a private one.
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = open.path().join("program");
    copy_program(program, &copy);
    let mut command = Command::new(copy);
    let user = unused_user();
    isolate(&mut command, user);
    command.env("HOME", open.path()).env("LTTNG_HOME", open.path()).env("LTTNG_UST_REGISTER_TIMEOUT", "0");
    command.env_remove("BLKKIN_UST_ROOTS").env("BLKKIN_UST", ust).current_dir("/");
    let output = command.output().unwrap();
    remove_wait_file(user);
    succeed(output)
}

#[test]
fn the_c_library_builds_without_headers() {
    let _serial = SERIAL.lock();
    let scratch = tempfile::tempdir().unwrap();
    let compiler = without_headers(scratch.path());
    let build = scratch.path().join("build");
    let output = make(&build).env("CC", &compiler).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    succeed(output);
    assert_eq!(stderr.matches("is built without LTTng-UST, nothing will be traced").count(), 1);
    let program =
        compile(&build, &build.join("libblkkin-ust.a"), "init_result.c", "init_result", &["-std=c11"]);
    assert_eq!(run(&program, ""), format!("{} built without LTTng-UST\n", -libc::ENOSYS));
    assert_eq!(run(&program, "0"), format!("{} switched off by BLKKIN_UST=0\n", -libc::ECANCELED));

    let required = scratch.path().join("required");
    let output = make(&required).env("CC", &compiler).env("BLKKIN_UST", "require").output().unwrap();
    assert!(!output.status.success());

    let with_probe = scratch.path().join("with-probe");
    if !make(&with_probe).env("BLKKIN_UST", "require").output().unwrap().status.success() {
        return println!("skipped: the probe cannot be built here");
    }
    let program = compile(
        &with_probe,
        &with_probe.join("libblkkin-ust.a"),
        "init_result.c",
        "init_result",
        &["-std=c11"],
    );
    assert_eq!(run(&program, ""), "0 \n");
    let stdout = run(&without_library(&program, scratch.path()), "");
    assert!(
        stdout.starts_with(&format!("{} cannot load LTTng-UST: liblttng-not.so.1: ", -libc::ELIBACC)),
        "{stdout}"
    );
}
