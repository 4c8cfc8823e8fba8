//! Programs that tests use, and facts about this machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blkkin_wire::ids::DeviceId;

/// Folders of root's programs, for a PATH without them.
const ROOT_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// Returns a command of an installed program, also found in root's folders.
pub(crate) fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:{ROOT_FOLDERS}"));
    command
}

/// Returns whether a program of this name can be found.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(ROOT_FOLDERS.split(':')).any(|folder| Path::new(folder).join(program).is_file())
}

/// Runs a command to its end and returns its stdout; if it fails, the error has its stderr.
pub(crate) fn capture(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !status.success() {
        return Err(format!("{name}: {status}: {}", String::from_utf8_lossy(&stderr).trim()));
    }
    Ok(String::from_utf8(stdout).unwrap().trim().to_owned())
}

/// Finds the static binary, or returns the reason to skip.
pub(crate) fn static_binary() -> Result<PathBuf, String> {
    let given = std::env::var_os("BLKKIN_STATIC").map(PathBuf::from);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/dist/test/blkkin");
    let found = given.into_iter().chain([built]).find(|file| file.is_file());
    found.ok_or_else(|| "no static binary: cargo xtask test builds one".to_owned())
}

/// Returns whether the tests run in an emulated guest, whose CPU is slower by far, and which has no documentation.
pub(crate) fn is_guest() -> bool {
    std::env::var_os("BLKKIN_GUEST").is_some()
}

/// Returns the number of CPUs of this machine.
pub(crate) fn cpus() -> usize {
    fs::read_to_string("/proc/cpuinfo").unwrap().lines().filter(|line| line.starts_with("processor")).count()
}

/// Returns the first two numbers of the running kernel's version.
pub(crate) fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Parses a device number, `major:minor` as the kernel prints it.
pub(crate) fn device_number(text: &str) -> DeviceId {
    let (major, minor) = text.trim().split_once(':').unwrap();
    DeviceId { major: major.parse().unwrap(), minor: minor.parse().unwrap() }
}

/// Returns the device number of a disk in /sys/block.
pub(crate) fn block_device(name: &str) -> DeviceId {
    device_number(&fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap())
}

/// Returns (file system's device, inode) of a path, as a trace identifies a file.
pub(crate) fn identity(path: &Path) -> (DeviceId, u64) {
    let found = fs::metadata(path).unwrap();
    (device_of(&found), found.ino())
}

/// Returns the device of the file system that a file is on.
pub(crate) fn device_of(metadata: &fs::Metadata) -> DeviceId {
    DeviceId { major: libc::major(metadata.dev()), minor: libc::minor(metadata.dev()) }
}
