//! Makes the probe: the shared object that the crate embeds and `init()` loads. See `src/probe.rs` for why it is one.
//!
//! In: the C sources in `c/probe`, LTTng-UST's headers and library, a C compiler. Out: `blkkin-probe.so` in `OUT_DIR` and the
//! cfg `blkkin_probe`; or neither, where it cannot be made, with one warning that says why. The crate's functions are the same
//! then, and `init()` says what the warning said. `BLKKIN_UST=require` makes that an error instead.

use std::env;
use std::path::Path;
use std::process::ExitCode;

const SOURCES: [&str; 6] = ["probe.c", "probe.h", "blkkin_tp.h", "zipkin_tp.h", "counts.h", "sampling.h"];

fn main() -> ExitCode {
    for source in SOURCES {
        println!("cargo::rerun-if-changed=c/probe/{source}");
    }
    // Set, the list above no longer has build.rs in it.
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BLKKIN_UST");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    println!("cargo::rustc-check-cfg=cfg(blkkin_probe)");
    println!("cargo::rustc-env=BLKKIN_NO_PROBE=");
    let why = match probe() {
        Ok(()) => {
            println!("cargo::rustc-cfg=blkkin_probe");
            return ExitCode::SUCCESS;
        }
        Err(why) => why,
    };
    if variable("BLKKIN_UST") == "require" {
        println!(
            "cargo::error=blkkin-ust cannot be built with LTTng-UST, which BLKKIN_UST=require asks for: {why}"
        );
        return ExitCode::FAILURE;
    }
    // What is not there counts as changed: once LTTng is installed the next build finds it.
    println!("cargo::rerun-if-changed={}/blkkin-probe.so", variable("OUT_DIR"));
    println!("cargo::warning=blkkin-ust is built without LTTng-UST, nothing will be traced: {why}");
    println!("cargo::rustc-env=BLKKIN_NO_PROBE={why}");
    ExitCode::SUCCESS
}

/// Makes the probe, or says in one line why it cannot be.
fn probe() -> Result<(), String> {
    if env::var_os("DOCS_RS").is_some() {
        return Err("docs.rs has no LTTng".to_owned());
    }
    let (system, libc) = (variable("CARGO_CFG_TARGET_OS"), variable("CARGO_CFG_TARGET_ENV"));
    if (system.as_str(), libc.as_str()) != ("linux", "gnu") {
        return Err(format!("LTTng-UST is for Linux with glibc, and this is {}", variable("TARGET")));
    }
    if variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static") {
        return Err("a static executable cannot load LTTng's library".to_owned());
    }
    let compiler = cc::Build::new()
        .pic(true)
        // The probe is the same for debug and release: it is measured, not debugged.
        .opt_level(2)
        .debug(false)
        .warnings(false)
        .try_get_compiler()
        .map_err(|why| format!("no C compiler: {why}"))?;
    let output = Path::new(&variable("OUT_DIR")).join("blkkin-probe.so");
    let mut command = compiler.to_command();
    command.args(["-shared", "-fvisibility=hidden", "-Ic/probe", "c/probe/probe.c", "-llttng-ust", "-o"]);
    let made = command.arg(&output).output().map_err(|why| format!("no C compiler: {why}"))?;
    match made.status.success() {
        true => Ok(()),
        false => Err(reason(&String::from_utf8_lossy(&made.stderr))),
    }
}

/// The compiler's first complaint, with the remedy where it is the usual one.
fn reason(complaints: &str) -> String {
    if complaints.contains("lttng/") || complaints.contains("-llttng-ust") {
        return "LTTng-UST 2.13 or later is not installed for building (Debian: liblttng-ust-dev; Fedora: lttng-ust-devel)"
            .to_owned();
    }
    let first = complaints.lines().find(|line| line.contains("error")).unwrap_or("it said nothing");
    format!("the C compiler failed: {first}")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}
