//! Published thread contexts with every linker and profile: a reader finds the symbol, and the
//! right record.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{UserCrate, compile, make, succeed};

/// Runs the program with these variables and without LTTng, and returns its output.
fn run(program: &Path, args: &[&Path], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(program);
    command
        .args(args)
        .env_remove("BLKKIN_UST_CONTEXT")
        .env("BLKKIN_UST", "0")
        .envs(variables.iter().copied());
    succeed(command.output().unwrap())
}

#[test]
fn a_rust_program_publishes_with_every_linker_and_profile() {
    let user_crate = UserCrate::thread_context();
    let lto = [("CARGO_PROFILE_RELEASE_LTO", "fat"), ("CARGO_PROFILE_RELEASE_STRIP", "symbols")];
    // rust-lld is the default for x86_64 since Rust 1.90. This flag selects GNU ld, the default
    // elsewhere.
    let gnu = [("RUSTFLAGS", "-Clinker-features=-lld")];
    let builds: [(&str, &[(&str, &str)]); 5] =
        [("debug", &[]), ("release", &[]), ("release", &lto), ("debug", &gnu), ("release", &gnu)];
    for (profile, variables) in builds {
        if variables == gnu && cfg!(not(target_arch = "x86_64")) {
            println!("skipped: GNU ld is the default here");
            continue;
        }
        let args: &[&str] = if profile == "release" { &["build", "--release"] } else { &["build"] };
        succeed(user_crate.cargo(args).envs(variables.iter().copied()).output().unwrap());
        let program = user_crate.program(profile);
        assert_eq!(run(&program, &[], &[]), "ok\n", "{profile} {variables:?}");
        println!("{profile} {variables:?}: ok");
    }
    let off = run(&user_crate.program("debug"), &[], &[("BLKKIN_UST_CONTEXT", "0")]);
    assert_eq!(off, "switched off by BLKKIN_UST_CONTEXT=0 or by an option\n");
}

#[test]
fn a_c_program_publishes() {
    let build = tempfile::tempdir().unwrap();
    let build = build.path();
    succeed(make(build).output().unwrap());
    let (fixed, shared) = (build.join("libblkkin-ust.a"), build.join("libblkkin-ust.so"));
    let flags = ["-std=gnu11", "-Wno-pedantic"];
    let program = compile(build, &fixed, "thread_context.c", "published", &flags);
    assert_eq!(run(&program, &[&shared], &[]), "0 \n");
    let off = format!("{} switched off by BLKKIN_UST_CONTEXT=0 or by an option\n", -libc::ECANCELED);
    assert_eq!(run(&program, &[&shared], &[("BLKKIN_UST_CONTEXT", "0")]), off);
    assert_eq!(run(&program, &[&shared], &[("NO_THREAD_CONTEXT", "1")]), off);
    let optimized = compile(
        build,
        &fixed,
        "thread_context.c",
        "optimized",
        &["-O3", "-flto", "-s", "-std=gnu11", "-Wno-pedantic"],
    );
    assert_eq!(run(&optimized, &[&shared], &[]), "0 \n");
    // If another library has the symbol, blkkin does not publish.
    let already_published = compile(
        build,
        &fixed,
        "thread_context.c",
        "already-published",
        &["-DALREADY_PUBLISHED", "-rdynamic", "-std=gnu11", "-Wno-pedantic"],
    );
    let expected = format!("{} another library of this process publishes otel_thread_ctx_v1\n", -libc::EBUSY);
    assert_eq!(run(&already_published, &[&shared], &[]), expected);
}
