//! Builds the eBPF programs for the BPF target and hands the object to the crate.
//!
//! The host's stable rustc has no BPF core library, so another toolchain is used:
//! `cargo xtask setup` finds or builds one and records its path in
//! `target/toolchain/toolchain.json`. The child cargo must not inherit the settings of the outer one
//! (flags, wrappers, target directory). It has one target directory for dev, release, test and
//! clippy, which therefore share one build.
//!
//! `BLKKIN_EBPF_OBJECT` names a prebuilt object, for machines without that toolchain.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

const OBJECT: &str = "blkkin-probes";

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let workspace =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").context("cargo sets CARGO_MANIFEST_DIR")?)
            .join("..")
            .canonicalize()?;
    println!("cargo::rerun-if-env-changed=BLKKIN_EBPF_OBJECT");
    println!("cargo::rerun-if-env-changed=BLKKIN_TOOLCHAIN_JSON");
    if let Some(ready) = env::var_os("BLKKIN_EBPF_OBJECT") {
        println!("cargo::rerun-if-changed={}", Path::new(&ready).display());
        return copy(Path::new(&ready), &out);
    }
    for input in ["kprobe-ebpf/src", "kprobe-ebpf/Cargo.toml", "kprobe-ebpf/Cargo.lock", "probe-abi/src"] {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    let target =
        out.ancestors().nth(4).context("OUT_DIR is four levels below the target directory")?.join("ebpf");
    build(&workspace, &target, &toolchain(&workspace)?)?;
    copy(&target.join("bpfel-unknown-none/release").join(OBJECT), &out)
}

struct Toolchain {
    rustc: String,
    linker: String,
    library_path: Option<String>,
}

fn toolchain(workspace: &Path) -> Result<Toolchain> {
    let file = env::var_os("BLKKIN_TOOLCHAIN_JSON")
        .map_or_else(|| workspace.join("target/toolchain/toolchain.json"), PathBuf::from);
    println!("cargo::rerun-if-changed={}", file.display());
    let text = std::fs::read(&file).with_context(|| {
        format!("no eBPF toolchain: {} cannot be read; run: cargo xtask setup", file.display())
    })?;
    let json: serde_json::Value = serde_json::from_slice(&text).with_context(|| {
        format!("{} was not written by `cargo xtask setup`; run it again", file.display())
    })?;
    let word = |key: &str| json[key].as_str().map(str::to_owned);
    let missing = |key: &str| format!("{} has no `{key}`; run: cargo xtask setup", file.display());
    Ok(Toolchain {
        rustc: word("rustc").with_context(|| missing("rustc"))?,
        linker: word("linker").with_context(|| missing("linker"))?,
        library_path: word("library_path"),
    })
}

fn build(workspace: &Path, target: &Path, toolchain: &Toolchain) -> Result<()> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("cargo sets CARGO_CFG_TARGET_ARCH")?;
    let flags = [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        format!("-Clinker={}", toolchain.linker),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
    ];
    let mut cargo = Command::new(env::var_os("CARGO").context("cargo sets CARGO")?);
    cargo
        .current_dir(workspace.join("kprobe-ebpf"))
        .args([
            "build",
            "--locked",
            "--release",
            "--quiet",
            "-Zbuild-std=core",
            "--target=bpfel-unknown-none",
        ])
        .arg("--target-dir")
        .arg(target)
        .env("RUSTC", &toolchain.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    // RUSTUP_TOOLCHAIN is kept: it selects the running cargo, not the compiler.
    for inherited in [
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        // The units of an incremental build link to BTF that the kernel rejects.
        "CARGO_INCREMENTAL",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
        "CARGO_MAKEFLAGS",
        "LD_LIBRARY_PATH",
    ] {
        cargo.env_remove(inherited);
    }
    if let Some(path) = &toolchain.library_path {
        cargo.env("LD_LIBRARY_PATH", path);
    }
    let status = cargo.status().context("cargo cannot be started")?;
    if !status.success() {
        bail!("the eBPF programs do not build ({status}); the messages are above");
    }
    Ok(())
}

fn copy(object: &Path, out: &Path) -> Result<()> {
    std::fs::copy(object, out.join(OBJECT))
        .with_context(|| format!("the eBPF object {} cannot be read", object.display()))?;
    Ok(())
}
