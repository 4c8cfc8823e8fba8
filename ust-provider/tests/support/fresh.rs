//! A crate as a user makes one: in a directory of its own, blkkin-ust a dependency, every flag the default.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::succeed;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// What a user's manifest says.
const MANIFEST: &str = r#"
[package]
name = "fresh"
version = "0.1.0"
edition = "2024"

[workspace]

[dependencies]
blkkin-ust.path = "CRATE"
"#;

/// What the program needs besides.
const TRACED: &str = r#"
libc = "0.2"
tokio = { version = "1", default-features = false, features = ["rt-multi-thread"] }
"#;

/// The crate, not yet built.
pub(crate) struct Fresh {
    source: tempfile::TempDir,
    target: PathBuf,
}

impl Fresh {
    /// The program that does all kinds of things. What is built for it stays for the next run.
    pub(crate) fn traced() -> Self {
        Self::new("traced", TRACED, include_str!("../programs/traced.rs"))
    }

    /// The program that says how connecting ended.
    pub(crate) fn verdict() -> Self {
        Self::new("verdict", "", include_str!("../programs/init_result.rs"))
    }

    /// The program that asks for what its threads publish.
    pub(crate) fn published() -> Self {
        Self::new("published", "\nlibc = \"0.2\"\n", include_str!("../programs/thread_context.rs"))
    }

    fn new(kept: &str, needs: &str, main: &str) -> Self {
        let source = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(source.path().join(name), text).unwrap();
        fs::create_dir(source.path().join("src")).unwrap();
        write("Cargo.toml", &[&MANIFEST.replace("CRATE", CRATE), needs].concat());
        write("src/main.rs", main);
        // The versions that are here already, where this is a workspace.
        let _ = fs::copy(Path::new(CRATE).join("../Cargo.lock"), source.path().join("Cargo.lock"));
        Self { source, target: Path::new(env!("CARGO_TARGET_TMPDIR")).join(kept) }
    }

    /// `cargo build ARGS` in it, as in a shell of the user's.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let ours = ["CARGO_", "RUSTFLAGS", "RUSTC", "BLKKIN_", "DOCS_RS", "MAKEFLAGS", "CFLAGS"];
            if ours.iter().any(|start| text.starts_with(start)) && text != "CARGO_HOME" {
                cargo.env_remove(name);
            }
        }
        cargo.args(args).current_dir(self.source.path()).env("CARGO_TARGET_DIR", &self.target);
        cargo
    }

    /// The program, built for debugging or for release.
    pub(crate) fn build(&self, profile: &str) -> PathBuf {
        let args: &[&str] = if profile == "release" { &["build", "--release"] } else { &["build"] };
        succeed(self.cargo(args).env("BLKKIN_UST", "require").output().unwrap());
        self.program(profile)
    }

    pub(crate) fn program(&self, profile: &str) -> PathBuf {
        self.target.join(profile).join("fresh")
    }

    /// The executable of blkkin-ust's build script, once something was built.
    pub(crate) fn build_script(&self) -> PathBuf {
        let built = fs::read_dir(self.target.join("debug/build")).unwrap();
        let scripts = built
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("blkkin-ust-"));
        scripts.map(|path| path.join("build-script-build")).find(|path| path.exists()).unwrap()
    }
}
