//! A user's crate: in its own directory, with blkkin-ust as a dependency and default flags.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::succeed;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Manifest of the crate.
const MANIFEST: &str = r#"
[package]
name = "example"
version = "0.1.0"
edition = "2024"

[workspace]

[dependencies]
blkkin-ust.path = "CRATE"
"#;

/// Additional dependencies of the program.
const TRACED: &str = r#"
libc = "0.2"
tokio = { version = "1", default-features = false, features = ["rt-multi-thread"] }
"#;

/// A crate that is not yet built.
pub(crate) struct UserCrate {
    source: tempfile::TempDir,
    target: PathBuf,
}

impl UserCrate {
    /// Creates the crate of `programs/traced.rs`. Its build artifacts stay for the next run.
    pub(crate) fn traced() -> Self {
        Self::new("traced", TRACED, include_str!("../programs/traced.rs"))
    }

    /// Creates the crate of `programs/init_result.rs`, which prints the result of `init`.
    pub(crate) fn init_result() -> Self {
        Self::new("init_result", "", include_str!("../programs/init_result.rs"))
    }

    /// Creates the crate of `programs/thread_context.rs`, which reads its own thread contexts.
    pub(crate) fn thread_context() -> Self {
        Self::new("thread_context", "\nlibc = \"0.2\"\n", include_str!("../programs/thread_context.rs"))
    }

    fn new(target: &str, dependencies: &str, main: &str) -> Self {
        let source = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(source.path().join(name), text).unwrap();
        fs::create_dir(source.path().join("src")).unwrap();
        write("Cargo.toml", &[&MANIFEST.replace("CRATE", CRATE), dependencies].concat());
        write("src/main.rs", main);
        // The versions of the workspace, if this is one, so that nothing is downloaded.
        let _ = fs::copy(Path::new(CRATE).join("../Cargo.lock"), source.path().join("Cargo.lock"));
        Self { source, target: Path::new(env!("CARGO_TARGET_TMPDIR")).join(target) }
    }

    /// Returns `cargo ARGS` in the crate, with the environment of a user's shell.
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

    /// Builds the program with this profile.
    pub(crate) fn build(&self, profile: &str) -> PathBuf {
        let args: &[&str] = if profile == "release" { &["build", "--release"] } else { &["build"] };
        succeed(self.cargo(args).env("BLKKIN_UST", "require").output().unwrap());
        self.program(profile)
    }

    pub(crate) fn program(&self, profile: &str) -> PathBuf {
        self.target.join(profile).join("example")
    }

    /// Returns the executable of blkkin-ust's build script, after a build.
    pub(crate) fn build_script(&self) -> PathBuf {
        let built = fs::read_dir(self.target.join("debug/build")).unwrap();
        let scripts = built
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("blkkin-ust-"));
        scripts.map(|path| path.join("build-script-build")).find(|path| path.exists()).unwrap()
    }
}
