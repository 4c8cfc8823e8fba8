//! Debian's `rustc-web` with its library source, unpacked below `target/toolchain/debian` without
//! installing it.
//!
//! Debian updates this compiler for its browsers, so its version changes within a release.
//! apt-cache returns the versions that belong together. Of the 137 MB download, only the files that
//! a build reads are unpacked.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Compiler;
use crate::packages::apt_with_fresh_lists;
use crate::shell;
use crate::toolchain::{LLVM_MAJOR, compiler_release, source_of};
use crate::workspace::Workspace;

/// Dependencies of LLVM that every system has: a second copy would only shadow the system's.
const ALWAYS_INSTALLED: &[&str] = &["libc6", "libgcc-s1", "libstdc++6"];

pub(super) fn find_or_make(workspace: &Workspace) -> Result<Compiler> {
    let folder = workspace.toolchain_dir().join("debian");
    if let Ok(compiler) = unpacked(workspace, &folder) {
        return Ok(compiler);
    }
    if shell::which("apt-get").is_none() {
        bail!("no apt on this machine");
    }
    let packages = apt_with_fresh_lists(packages)?;
    println!(
        "  downloading and unpacking into target/toolchain, nothing is installed: {}",
        packages.join(" ")
    );
    let partial = folder.with_extension("partial");
    remove(&partial)?;
    apt_with_fresh_lists(|| download(&packages, &partial.join("packages")))?;
    unpack(&partial)?;
    remove(&partial.join("packages"))?;
    remove(&folder)?;
    fs::rename(&partial, &folder).with_context(|| format!("cannot rename {}", partial.display()))?;
    unpacked(workspace, &folder).context("the unpacked compiler does not work")
}

/// Returns the compiler in `folder`, if it works.
fn unpacked(workspace: &Workspace, folder: &Path) -> Result<Compiler> {
    let libraries = library_folder(folder)?;
    let rustc = wrapper(workspace, folder, &libraries)?;
    let release = compiler_release(&rustc)?;
    source_of(&rustc, &release)?;
    let llvm = libraries.join(format!("libLLVM.so.{LLVM_MAJOR}.1"));
    let llvm = llvm.canonicalize().with_context(|| format!("no {}", llvm.display()))?;
    Ok(Compiler { rustc, llvm, library_path: Some(libraries) })
}

/// Finds the architecture folder in `usr/lib` that contains the compiler's driver.
fn library_folder(folder: &Path) -> Result<PathBuf> {
    let usr_lib = folder.join("usr/lib");
    let holds_driver = |candidate: &PathBuf| {
        let files = files_in(candidate).unwrap_or_default();
        files.iter().any(|file| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librustc_driver"))
        })
    };
    files_in(&usr_lib)?
        .into_iter()
        .find(holds_driver)
        .with_context(|| format!("no librustc_driver below {}", usr_lib.display()))
}

/// Writes a script that runs the unpacked compiler with the unpacked libraries, because cargo runs
/// the compiler with other environments too.
fn wrapper(workspace: &Workspace, folder: &Path, libraries: &Path) -> Result<PathBuf> {
    let path = workspace.toolchain_dir().join("bin/rustc");
    let compiler = folder.join("usr/bin/rustc");
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{}' exec '{}' \"$@\"\n",
        libraries.display(),
        compiler.display()
    );
    if fs::read_to_string(&path).is_ok_and(|found| found == script) {
        return Ok(path);
    }
    fs::create_dir_all(workspace.toolchain_dir().join("bin"))
        .and_then(|()| fs::write(&path, script))
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Lists the packages to download, with versions: the candidate compiler and its exact
/// dependencies.
fn packages() -> Result<Vec<String>> {
    let compiler = Candidate::of("rustc-web")?;
    let development = compiler.dependency_of_same_version("libstd-rust-web-dev")?;
    let library = development.dependency_of_same_version("libstd-rust-web-")?;
    let source = Candidate::of(&format!("rust-web-src={}", compiler.version))?;
    let llvm = Candidate::of(&library.dependency("libllvm")?)?;
    if llvm.name != format!("libllvm{LLVM_MAJOR}") {
        bail!("rustc-web {} needs {}, and LLVM {LLVM_MAJOR} is needed here", compiler.version, llvm.name);
    }
    let absent = absent_libraries(&llvm.name)?;
    let versioned = [compiler, development, library, source, llvm]
        .map(|package| format!("{}={}", package.name, package.version));
    Ok(versioned.into_iter().chain(absent).collect())
}

/// Package at the version that apt would install, or at the version in `name=version`.
struct Candidate {
    name: String,
    version: String,
    depends: String,
}

impl Candidate {
    fn of(package: &str) -> Result<Self> {
        let record = shell::capture(Command::new("apt-cache").args(["show", "--no-all-versions", package]))?;
        let field = |key: &str| record.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let value = |key: &str| {
            field(key).map(str::to_owned).with_context(|| format!("apt-cache has no package {package}"))
        };
        Ok(Self {
            name: value("Package")?,
            version: value("Version")?,
            depends: field("Depends").unwrap_or_default().to_owned(),
        })
    }

    /// Returns the name of the dependency that starts with `start`.
    fn dependency(&self, start: &str) -> Result<String> {
        let names = self.depends.split(", ").filter_map(|package| package.split_whitespace().next());
        let found = names.map(str::to_owned).find(|name| name.starts_with(start));
        found.with_context(|| format!("{} {} depends on no {start}", self.name, self.version))
    }

    /// Returns that dependency at this package's version, because Debian builds both from one
    /// source.
    fn dependency_of_same_version(&self, start: &str) -> Result<Self> {
        Self::of(&format!("{}={}", self.dependency(start)?, self.version))
    }
}

/// Lists the dependencies of `package` that are not installed (LLVM's: libedit, libxml2, libz3 and
/// their dependencies).
fn absent_libraries(package: &str) -> Result<BTreeSet<String>> {
    let mut depends = Command::new("apt-cache");
    depends.args([
        "depends",
        "--recurse",
        "--no-recommends",
        "--no-suggests",
        "--no-conflicts",
        "--no-breaks",
    ]);
    depends.args(["--no-replaces", "--no-enhances", package]);
    let tree = shell::capture(&mut depends)?;
    let names = tree.lines().filter(|line| line.starts_with("lib") && *line != package);
    let installed = shell::capture(Command::new("dpkg-query").args([
        "--show",
        "--showformat",
        "${db:Status-Status} ${Package}\n",
    ]))?;
    let installed: BTreeSet<&str> =
        installed.lines().filter_map(|line| line.strip_prefix("installed ")).collect();
    let absent = names.filter(|name| !installed.contains(name) && !ALWAYS_INSTALLED.contains(name));
    Ok(absent.map(str::to_owned).collect())
}

/// Downloads packages as any user. As root apt's own user could not write below `target/`.
pub(super) fn download(packages: &[String], folder: &Path) -> Result<()> {
    remove(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = Command::new("apt-get");
    command.current_dir(folder).args(["-qq", "-o", "APT::Sandbox::User=root", "download"]).args(packages);
    shell::run(&mut command)
}

/// Unpacks all packages in parallel, because xz uses one core per package.
pub(super) fn unpack(folder: &Path) -> Result<()> {
    let packages = files_in(&folder.join("packages"))?;
    std::thread::scope(|scope| {
        let running: Vec<_> =
            packages.iter().map(|package| scope.spawn(|| unpack_one(package, folder))).collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("an unpacking thread panicked")))
    })
}

/// Unpacks a package. Of the source only the library is kept; the compiler's own source is five
/// times as large.
fn unpack_one(package: &Path, folder: &Path) -> Result<()> {
    let is_source =
        package.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rust-web-src_"));
    let only = if is_source { "--wildcards './usr/src/*/library' './usr/lib/rustlib/src'" } else { "" };
    let script =
        format!("set -o pipefail; dpkg-deb --fsys-tarfile \"$1\" | tar --extract --directory \"$2\" {only}");
    shell::run_quietly(Command::new("bash").args(["-c", &script, "unpack"]).args([package, folder]))
}

pub(super) fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { Ok(()) };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries
        .map(|entry| {
            entry.map(|found| found.path()).with_context(|| format!("cannot read {}", folder.display()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_found_by_name_prefix() {
        let package = Candidate {
            name: "libstd-rust-web-1.96".into(),
            version: "1.96.0".into(),
            depends: "libc6 (>= 2.34), libllvm22, libstdc++6 (>= 11)".into(),
        };
        assert_eq!(package.dependency("libllvm").expect("is there"), "libllvm22");
        assert!(package.dependency("libstd-rust-web-").is_err());
    }
}
