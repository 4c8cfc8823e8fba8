//! Every way in which the crate is built or started without LTTng: the program is the same, starts, and says why.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use support::{Fresh, alone, compile, copy_program, forget, make, nobody_else, succeed, without_headers};

/// Programs are written and run here, and one cannot be run while a child of another thread still has it open to be written.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// One after another: they are builds of one crate in one directory.
#[test]
fn it_builds_everywhere_and_says_why_it_traces_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    let fresh = Fresh::verdict();
    let scratch = tempfile::tempdir().unwrap();

    let bare = without_headers(scratch.path());
    let cc = ("CC", bare.to_str().unwrap());
    let said = built(&fresh, &[cc], "built without LTTng-UST: LTTng-UST 2.13 or later is not installed");
    println!("without headers: {said}");
    refused(&fresh, &[cc], "liblttng-ust-dev");

    built(&fresh, &[("DOCS_RS", "1")], "built without LTTng-UST: docs.rs has no LTTng");
    refused(&fresh, &[("DOCS_RS", "1")], "docs.rs has no LTTng");
    succeed(fresh.cargo(&["doc", "-p", "blkkin-ust", "--no-deps"]).env("DOCS_RS", "1").output().unwrap());

    let is_static = ("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    built(&fresh, &[is_static], "built without LTTng-UST: a static executable cannot load LTTng's library");
    assert_eq!(publishing(&fresh.program("debug")), NOT_EXPORTED);

    let nothing = ("CC", "/nonexistent/cc");
    built(&fresh, &[nothing], "built without LTTng-UST: no C compiler");

    build_scripts_verdicts(&fresh);
    with_the_probe(&fresh, scratch.path());
}

/// The verdict on targets whose standard library may not be here.
fn build_scripts_verdicts(fresh: &Fresh) {
    let script = fresh.build_script();
    let run = |libc: &str, system: &str, ust: &str| {
        let mut script = Command::new(&script);
        script.env("CARGO_CFG_TARGET_OS", system).env("CARGO_CFG_TARGET_ENV", libc).env("BLKKIN_UST", ust);
        let output = script.env("TARGET", format!("x-{system}-{libc}")).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    for (libc, system) in [("musl", "linux"), ("", "macos")] {
        let (succeeded, said) = run(libc, system, "");
        assert!(succeeded && !said.contains("rustc-cfg=blkkin_probe"), "{said}");
        assert_eq!(said.matches("cargo::warning=").count(), 1, "{said}");
        assert!(said.contains(&format!("this is x-{system}-{libc}")), "{said}");
        let (succeeded, said) = run(libc, system, "require");
        assert!(!succeeded && said.contains("cargo::error="), "{said}");
    }
}

#[test]
fn it_builds_for_musl() {
    let _alone = ONE_AT_A_TIME.lock();
    let fresh = Fresh::verdict();
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let asked =
        Command::new("rustc").args(["--print", "target-libdir", "--target", &target]).output().unwrap();
    if !Path::new(String::from_utf8(asked.stdout).unwrap().trim()).exists() {
        return println!("skipped: no standard library for {target}");
    }
    let exports = "-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
    for (flags, publishes) in [("", NOT_EXPORTED), (exports, "ok")] {
        succeed(fresh.cargo(&["build", "--target", &target]).env("RUSTFLAGS", flags).output().unwrap());
        let program = fresh.program(&format!("{target}/debug"));
        let said = verdict(&program, "");
        assert!(said.starts_with("built without LTTng-UST: LTTng-UST is for Linux with glibc"), "{said}");
        assert_eq!(publishing(&program), publishes, "{flags}");
    }
}

const NOT_EXPORTED: &str = "this static executable does not export otel_thread_ctx_v1: link it with \
    -Wl,--export-dynamic-symbol=otel_thread_ctx_v1";

/// What it says of publishing.
fn publishing(program: &Path) -> String {
    succeed(Command::new(program).arg("publishing").env("BLKKIN_UST", "0").output().unwrap())
        .trim()
        .to_owned()
}

/// With everything there at build time, and not at run time.
fn with_the_probe(fresh: &Fresh, scratch: &Path) {
    if let Some(why) = no_probe(fresh) {
        return println!("skipped: {why}");
    }
    let program = fresh.build("debug");
    assert_eq!(verdict(&program, ""), "ok");
    let said = verdict(&program, "0");
    assert_eq!(said, "switched off by BLKKIN_UST=0");
    let said = verdict(&without_library(&program, scratch), "");
    let missing = "liblttng-not.so.1: cannot open shared object file: No such file or directory";
    assert_eq!(said, format!("cannot load LTTng-UST: {missing}"));
    // The executable itself asks for none of it.
    let needed = succeed(Command::new("readelf").args(["-d"]).arg(&program).output().unwrap());
    assert!(!needed.contains("lttng"), "{needed}");
}

/// A copy of `program` whose probe asks for a library that does not exist.
fn without_library(program: &Path, scratch: &Path) -> PathBuf {
    let (there, not_there) = (b"liblttng-ust.so.1\0", b"liblttng-not.so.1\0");
    let mut bytes = fs::read(program).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - there.len()).filter(|&place| bytes[place..].starts_with(there)).collect();
    assert_eq!(places.len(), 1);
    bytes[places[0]..places[0] + there.len()].copy_from_slice(not_there);
    let copy = scratch.join("without-library");
    fs::copy(program, &copy).unwrap();
    fs::write(&copy, bytes).unwrap();
    copy
}

/// Why this machine cannot make the probe.
fn no_probe(fresh: &Fresh) -> Option<String> {
    let output = fresh.cargo(&["build"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    said.lines().find(|line| line.contains("is built without LTTng-UST")).map(str::to_owned)
}

/// Builds with these variables set: one warning; and runs it.
fn built(fresh: &Fresh, variables: &[(&str, &str)], expected: &str) -> String {
    let output = fresh.cargo(&["build"]).envs(variables.iter().copied()).output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    succeed(output);
    let warnings = complained.matches("is built without LTTng-UST, nothing will be traced").count();
    assert_eq!(warnings, 1, "{complained}");
    // The compiler has nothing to say of what is left out then: who builds it so must not think it broken.
    let others =
        complained.lines().filter(|line| line.starts_with("warning") || line.starts_with("error")).count();
    assert_eq!(others, 1, "{complained}");
    let said = verdict(&fresh.program("debug"), "");
    assert!(said.starts_with(expected), "{said}");
    said
}

/// The same, where LTTng is required: an error that says why.
fn refused(fresh: &Fresh, variables: &[(&str, &str)], expected: &str) {
    let mut cargo = fresh.cargo(&["build"]);
    let output = cargo.envs(variables.iter().copied()).env("BLKKIN_UST", "require").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("which BLKKIN_UST=require asks for") && said.contains(expected), "{said}");
}

/// What the program says of `init`, which never takes long where there is nothing to wait for.
fn verdict(program: &Path, ust: &str) -> String {
    let said = run(program, ust);
    let (verdict, took) = said.trim_end().rsplit_once('\n').unwrap();
    let took = Duration::from_micros(took.parse().unwrap());
    println!("{verdict}: {took:?}");
    assert!(took < Duration::from_secs(1));
    verdict.to_owned()
}

/// What it prints, with `BLKKIN_UST` set so and no session daemon to be waited for.
fn run(program: &Path, ust: &str) -> String {
    // Where its user can look: the build may lie where only its owner does.
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = open.path().join("program");
    copy_program(program, &copy);
    let mut command = Command::new(copy);
    let user = nobody_else();
    alone(&mut command, user);
    command.env("HOME", open.path()).env("LTTNG_HOME", open.path()).env("LTTNG_UST_REGISTER_TIMEOUT", "0");
    command.env_remove("BLKKIN_UST_ROOTS").env("BLKKIN_UST", ust).current_dir("/");
    let output = command.output().unwrap();
    forget(user);
    succeed(output)
}

#[test]
fn the_c_library_is_made_without_headers_too() {
    let _alone = ONE_AT_A_TIME.lock();
    let scratch = tempfile::tempdir().unwrap();
    let bare = without_headers(scratch.path());
    let build = scratch.path().join("build");
    let output = make(&build).env("CC", &bare).output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    succeed(output);
    assert_eq!(complained.matches("is built without LTTng-UST, nothing will be traced").count(), 1);
    let program =
        compile(&build, &build.join("libblkkin-ust.a"), "init_result.c", "init_result", &["-std=c11"]);
    assert_eq!(run(&program, ""), format!("{} built without LTTng-UST\n", -libc::ENOSYS));
    assert_eq!(run(&program, "0"), format!("{} switched off by BLKKIN_UST=0\n", -libc::ECANCELED));

    let again = scratch.path().join("again");
    let output = make(&again).env("CC", &bare).env("BLKKIN_UST", "require").output().unwrap();
    assert!(!output.status.success());

    let whole = scratch.path().join("whole");
    if !make(&whole).env("BLKKIN_UST", "require").output().unwrap().status.success() {
        return println!("skipped: the probe cannot be made here");
    }
    let program =
        compile(&whole, &whole.join("libblkkin-ust.a"), "init_result.c", "init_result", &["-std=c11"]);
    assert_eq!(run(&program, ""), "0 \n");
    let said = run(&without_library(&program, scratch.path()), "");
    assert!(
        said.starts_with(&format!("{} cannot load LTTng-UST: liblttng-not.so.1: ", -libc::ELIBACC)),
        "{said}"
    );
}
