//! Programs of this machine for a guest, with their libraries at the same paths.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::archive::Archive;

/// Folders of root's programs, for a PATH without them.
const ROOT_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Finds a program as a shell does, and in the folders of root's programs.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(ROOT_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Adds programs of this machine with their libraries, in a folder of the shell's PATH.
pub fn add(archive: &mut Archive, programs: &[&str]) -> Result<()> {
    for program in programs {
        let found = which(program).with_context(|| format!("{program} is not installed"))?;
        libraries_of(&found)?.iter().try_for_each(|library| archive.copy(library))?;
        let bytes = fs::read(&found).with_context(|| format!("cannot read {}", found.display()))?;
        archive.file(&format!("bin/{program}"), &bytes)?;
    }
    Ok(())
}

/// Adds a link to busybox for each of its programs that the archive does not have.
pub(crate) fn add_busybox_links(archive: &mut Archive) -> Result<()> {
    let list = output(Command::new("busybox").arg("--list"))?;
    String::from_utf8_lossy(&list)
        .lines()
        .try_for_each(|name| archive.link(&format!("bin/{name}"), "busybox"))
}

/// Reads an executable without debug information, which is four fifths of a test program. `spare` is a path for a
/// copy.
pub fn stripped(executable: &Path, spare: &Path) -> Result<Vec<u8>> {
    output(Command::new("strip").arg("-o").arg(spare).arg(executable))?;
    fs::read(spare).with_context(|| format!("cannot read {}", spare.display()))
}

/// Lists the libraries that the dynamic linker loads; empty for a static program.
pub fn libraries_of(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(str::to_owned).collect())
}

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("cannot start {name}"))?;
    if !status.success() {
        bail!("{name} failed ({status}): {}", String::from_utf8_lossy(&stderr).trim());
    }
    Ok(stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_finds_sh_and_no_unknown_program() {
        assert!(which("sh").is_some());
        assert!(which("blkkin-no-such-program").is_none());
    }
}
