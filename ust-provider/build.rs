//! Makes the two shared objects that the crate embeds and `init()` loads: the probe (`src/probe.rs` says why it is one) and the slot
//! (`src/publish.rs`).
//!
//! In: the C sources in `c/probe` and `c/slot`, a C compiler, and for the probe LTTng-UST's headers and library. Out: `blkkin-probe.so`
//! and `blkkin-slot.so` in `OUT_DIR` with the cfgs `blkkin_probe` and `blkkin_slot`; for a static executable the slot as an object that
//! is linked, with the cfg `blkkin_slot_static`; or one or none of them, where they cannot be made,
//! with one warning that says why. The crate's functions are the same then, and `init()` and `publishing()` say what the warning said.
//! `BLKKIN_UST=require` makes that an error instead.

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
    println!("cargo::rerun-if-changed=c/slot/slot.c");
    println!("cargo::rustc-check-cfg=cfg(blkkin_probe, blkkin_slot, blkkin_slot_static)");
    println!("cargo::rustc-env=BLKKIN_NO_PROBE=");
    println!("cargo::rustc-env=BLKKIN_NO_SLOT=");
    let slot = system().and_then(|()| if is_static() { slot_inside() } else { slot(&compiler()?) });
    match &slot {
        Ok(()) if is_static() => println!("cargo::rustc-cfg=blkkin_slot_static"),
        Ok(()) => println!("cargo::rustc-cfg=blkkin_slot"),
        Err(why) => println!("cargo::rustc-env=BLKKIN_NO_SLOT={why}"),
    }
    let why = match loads().and_then(|()| probe(&compiler()?)) {
        Ok(()) => {
            println!("cargo::rustc-cfg=blkkin_probe");
            match slot {
                Ok(()) => return ExitCode::SUCCESS,
                Err(why) => why,
            }
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

/// Or in one line why nothing can be made.
fn system() -> Result<(), String> {
    match variable("CARGO_CFG_TARGET_OS").as_str() {
        _ if env::var_os("DOCS_RS").is_some() => Err("docs.rs has no LTTng".to_owned()),
        "linux" => Ok(()),
        _ => Err(format!("LTTng-UST is for Linux with glibc, and this is {}", variable("TARGET"))),
    }
}

/// Whether LTTng's library can be loaded there.
fn loads() -> Result<(), String> {
    system()?;
    match variable("CARGO_CFG_TARGET_ENV").as_str() {
        "gnu" if is_static() => Err("a static executable cannot load LTTng's library".to_owned()),
        "gnu" => Ok(()),
        _ => Err(format!("LTTng-UST is for Linux with glibc, and this is {}", variable("TARGET"))),
    }
}

/// Programs for musl are, unless it is said that they are not: cargo tells only of features that shared objects would have as well.
fn is_static() -> bool {
    let told = variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static");
    let musl = variable("CARGO_CFG_TARGET_ENV") == "musl";
    told || musl && !variable("CARGO_ENCODED_RUSTFLAGS").contains("-crt-static")
}

fn compiler() -> Result<cc::Tool, String> {
    build().try_get_compiler().map_err(|why| format!("no C compiler: {why}"))
}

fn build() -> cc::Build {
    let mut build = cc::Build::new();
    build.pic(true);
    // They are the same for debug and release: they are measured, not debugged.
    build.opt_level(2).debug(false).warnings(false);
    // One warning is enough, and it is ours.
    build.cargo_warnings(false);
    build
}

/// Whether the program exports it is for its own linker: `init()` looks.
fn slot_inside() -> Result<(), String> {
    let mut build = build();
    // Where the thread pointer is, as the program knows it itself.
    build.flag("-ftls-model=local-exec").file("c/slot/slot.c");
    build.try_compile("blkkin-slot").map_err(|why| format!("the C compiler failed: {why}"))
}

fn probe(compiler: &cc::Tool) -> Result<(), String> {
    shared(compiler, &["-Ic/probe", "c/probe/probe.c", "-llttng-ust"], "blkkin-probe.so")
}

/// By a descriptor where the compiler knows them (as aarch64's do unasked): the loader then has the slot beside the thread pointer,
/// and a reader finds it at a distance. Else each thread's vector leads to it, which costs the reader two looks more a thread.
fn slot(compiler: &cc::Tool) -> Result<(), String> {
    let words = ["-nostdlib", "-Wl,-soname,blkkin-thread-slot.so.1", "c/slot/slot.c"];
    let descriptor = [&["-mtls-dialect=gnu2"], &words[..]].concat();
    shared(compiler, &descriptor, "blkkin-slot.so").or_else(|_| shared(compiler, &words, "blkkin-slot.so"))
}

fn shared(compiler: &cc::Tool, words: &[&str], name: &str) -> Result<(), String> {
    let mut command = compiler.to_command();
    command.args(["-shared", "-fvisibility=hidden"]).args(words);
    command.arg("-o").arg(Path::new(&variable("OUT_DIR")).join(name));
    let made = command.output().map_err(|why| format!("no C compiler: {why}"))?;
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
