//! Builds the eBPF programs for the BPF target and hands the object to the crate.
//!
//! The host's stable rustc has no BPF core library, so another toolchain is used:
//! `cargo xtask setup` finds or builds one and records its path in
//! `target/toolchain/toolchain.json`. The child cargo (`ebpf_build.rs`) has one target directory for
//! dev, release, test and clippy, which therefore share one build.
//!
//! `BLKKIN_EBPF_OBJECT` names a prebuilt object, for machines without that toolchain.

mod ebpf_build;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

use ebpf_build::EbpfToolchain;

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
    println!("cargo::rerun-if-changed=ebpf_build.rs");
    for input in ["kprobe-ebpf/src", "kprobe-ebpf/Cargo.toml", "kprobe-ebpf/Cargo.lock", "probe-abi/src"] {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    let target =
        out.ancestors().nth(4).context("OUT_DIR is four levels below the target directory")?.join("ebpf");
    build(&workspace, &target, &toolchain(&workspace)?)?;
    copy_stripped(&target.join(ebpf_build::TARGET).join("release").join(OBJECT), &out)
}

fn toolchain(workspace: &Path) -> Result<EbpfToolchain> {
    let file = env::var_os("BLKKIN_TOOLCHAIN_JSON")
        .map_or_else(|| workspace.join("target/toolchain/toolchain.json"), PathBuf::from);
    println!("cargo::rerun-if-changed={}", file.display());
    let text = std::fs::read(&file).with_context(|| {
        format!("no eBPF toolchain: {} cannot be read; run: cargo xtask setup", file.display())
    })?;
    let json: serde_json::Value = serde_json::from_slice(&text).with_context(|| {
        format!("{} was not written by `cargo xtask setup`; run it again", file.display())
    })?;
    let path = |key: &str| json[key].as_str().map(PathBuf::from);
    let missing = |key: &str| format!("{} has no `{key}`; run: cargo xtask setup", file.display());
    Ok(EbpfToolchain {
        rustc: path("rustc").with_context(|| missing("rustc"))?,
        linker: path("linker").with_context(|| missing("linker"))?,
        library_path: path("library_path"),
    })
}

fn build(workspace: &Path, target: &Path, toolchain: &EbpfToolchain) -> Result<()> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("cargo sets CARGO_CFG_TARGET_ARCH")?;
    let cargo = env::var_os("CARGO").context("cargo sets CARGO")?;
    let mut command = ebpf_build::command(&cargo, workspace, target, toolchain, &arch);
    let status = command.status().context("cargo cannot be started")?;
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

/// Copies the object without the debug information for debuggers, from which the linker made BTF, and without
/// relocations of `.BTF.ext`. The kernel and the loader read neither. They are four fifths of the object, and the
/// loader would parse all of it at each start.
fn copy_stripped(object: &Path, out: &Path) -> Result<()> {
    let shown = object.display();
    let bytes = std::fs::read(object).with_context(|| format!("the eBPF object {shown} cannot be read"))?;
    let mut elf =
        Builder::read(&*bytes).with_context(|| format!("the eBPF object {shown} is no ELF file"))?;
    for section in &mut elf.sections {
        let name = section.name.as_slice();
        let unread = [".debug_", ".rel.debug_", ".rel.BTF.ext"];
        section.delete |= unread.iter().any(|prefix| name.starts_with(prefix.as_bytes()));
    }
    // LLVM has the names of sections and symbols in one table, which the writer does not.
    let names = elf.sections.add();
    (names.name, names.sh_type, names.data) = (".shstrtab".into(), SHT_STRTAB, SectionData::SectionString);
    let mut stripped = Vec::new();
    elf.write(&mut stripped).with_context(|| format!("the eBPF object {shown} cannot be stripped"))?;
    let to = out.join(OBJECT);
    std::fs::write(&to, stripped).with_context(|| format!("{} cannot be written", to.display()))
}
