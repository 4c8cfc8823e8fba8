//! Build script: compiles the two shared objects that the crate embeds and `init()` loads, the
//! probe (`src/probe.rs` has the reason) and the slot (`src/thread_context.rs`).
//!
//! *In*: the C sources in `c/probe` and `c/slot`, a C compiler, and for the probe LTTng-UST's
//! headers and library. *Out*: `blkkin-probe.so` and `blkkin-slot.so` in `OUT_DIR`, with the cfgs
//! `blkkin_probe` and `blkkin_slot`. For a static executable the slot is an object that is linked,
//! with the cfg `blkkin_slot_static`.
//!
//! *Invariant*: the crate always builds and has the same functions. If an object cannot be built,
//! the build prints one warning with the reason, and `init()` and `publishing()` return it.
//! `BLKKIN_UST=require` makes it an error.

use std::env;
use std::path::Path;
use std::process::ExitCode;

const SOURCES: [&str; 6] = ["probe.c", "probe.h", "blkkin_tp.h", "zipkin_tp.h", "counts.h", "sampling.h"];

fn main() -> ExitCode {
    for source in SOURCES {
        println!("cargo::rerun-if-changed=c/probe/{source}");
    }
    // With any rerun-if-changed, cargo no longer watches build.rs on its own.
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BLKKIN_UST");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    println!("cargo::rerun-if-changed=c/slot/slot.c");
    println!("cargo::rustc-check-cfg=cfg(blkkin_probe, blkkin_slot, blkkin_slot_static)");
    println!("cargo::rustc-env=BLKKIN_NO_PROBE=");
    println!("cargo::rustc-env=BLKKIN_NO_SLOT=");
    let slot = check_target().and_then(|()| if is_static() { static_slot() } else { slot(&compiler()?) });
    match &slot {
        Ok(()) if is_static() => println!("cargo::rustc-cfg=blkkin_slot_static"),
        Ok(()) => println!("cargo::rustc-cfg=blkkin_slot"),
        Err(reason) => println!("cargo::rustc-env=BLKKIN_NO_SLOT={reason}"),
    }
    let reason = match can_load().and_then(|()| probe(&compiler()?)) {
        Ok(()) => {
            println!("cargo::rustc-cfg=blkkin_probe");
            match slot {
                Ok(()) => return ExitCode::SUCCESS,
                Err(reason) => reason,
            }
        }
        Err(reason) => reason,
    };
    if env_var("BLKKIN_UST") == "require" {
        println!(
            "cargo::error=blkkin-ust cannot be built with LTTng-UST, which BLKKIN_UST=require asks for: {reason}"
        );
        return ExitCode::FAILURE;
    }
    // A missing file counts as changed, so the next build finds LTTng once it is installed.
    println!("cargo::rerun-if-changed={}/blkkin-probe.so", env_var("OUT_DIR"));
    println!("cargo::warning=blkkin-ust is built without LTTng-UST, nothing will be traced: {reason}");
    println!("cargo::rustc-env=BLKKIN_NO_PROBE={reason}");
    ExitCode::SUCCESS
}

/// Checks the target system, and returns the reason if it is not supported.
fn check_target() -> Result<(), String> {
    match env_var("CARGO_CFG_TARGET_OS").as_str() {
        _ if env::var_os("DOCS_RS").is_some() => Err("docs.rs has no LTTng".to_owned()),
        "linux" => Ok(()),
        _ => Err(format!("LTTng-UST is for Linux with glibc, and this is {}", env_var("TARGET"))),
    }
}

/// Checks whether the target can load LTTng's library.
fn can_load() -> Result<(), String> {
    check_target()?;
    match env_var("CARGO_CFG_TARGET_ENV").as_str() {
        "gnu" if is_static() => Err("a static executable cannot load LTTng's library".to_owned()),
        "gnu" => Ok(()),
        _ => Err(format!("LTTng-UST is for Linux with glibc, and this is {}", env_var("TARGET"))),
    }
}

/// Returns whether the executable is static. For musl that is the default, which `-crt-static`
/// disables. Cargo does not pass the default as a feature.
fn is_static() -> bool {
    let has_feature = env_var("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static");
    let musl = env_var("CARGO_CFG_TARGET_ENV") == "musl";
    has_feature || musl && !env_var("CARGO_ENCODED_RUSTFLAGS").contains("-crt-static")
}

fn compiler() -> Result<cc::Tool, String> {
    build().try_get_compiler().map_err(|error| format!("no C compiler: {error}"))
}

fn build() -> cc::Build {
    let mut build = cc::Build::new();
    build.pic(true);
    // The objects are the same in debug and release builds.
    build.opt_level(2).debug(false).warnings(false);
    // This script prints one warning of its own.
    build.cargo_warnings(false);
    build
}

/// Compiles the slot into the program. Its linker decides whether the symbol is exported, which
/// `init()` checks.
fn static_slot() -> Result<(), String> {
    let mut build = build();
    // The offset from the thread pointer is known when the program is linked.
    build.flag("-ftls-model=local-exec").file("c/slot/slot.c");
    build.try_compile("blkkin-slot").map_err(|error| format!("the C compiler failed: {error}"))
}

fn probe(compiler: &cc::Tool) -> Result<(), String> {
    shared(compiler, &["-Ic/probe", "c/probe/probe.c", "-llttng-ust"], "blkkin-probe.so")
}

/// Compiles the slot with TLS descriptors if the compiler supports them (aarch64 compilers use them
/// by default). The loader then places the slot at a fixed distance from the thread pointer.
/// Otherwise a reader follows the thread's vector of modules, which costs two more reads per
/// thread.
fn slot(compiler: &cc::Tool) -> Result<(), String> {
    let args = ["-nostdlib", "-Wl,-soname,blkkin-thread-slot.so.1", "c/slot/slot.c"];
    let descriptor = [&["-mtls-dialect=gnu2"], &args[..]].concat();
    shared(compiler, &descriptor, "blkkin-slot.so").or_else(|_| shared(compiler, &args, "blkkin-slot.so"))
}

fn shared(compiler: &cc::Tool, args: &[&str], name: &str) -> Result<(), String> {
    let mut command = compiler.to_command();
    command.args(["-shared", "-fvisibility=hidden"]).args(args);
    command.arg("-o").arg(Path::new(&env_var("OUT_DIR")).join(name));
    let output = command.output().map_err(|error| format!("no C compiler: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failure_reason(&String::from_utf8_lossy(&output.stderr))),
    }
}

/// Returns the compiler's first error, or the remedy if LTTng-UST is missing.
fn failure_reason(errors: &str) -> String {
    if errors.contains("lttng/") || errors.contains("-llttng-ust") {
        return "LTTng-UST 2.13 or later is not installed for building (Debian: liblttng-ust-dev; Fedora: lttng-ust-devel)"
            .to_owned();
    }
    let first = errors.lines().find(|line| line.contains("error")).unwrap_or("no output");
    format!("the C compiler failed: {first}")
}

fn env_var(name: &str) -> String {
    env::var(name).unwrap_or_default()
}
