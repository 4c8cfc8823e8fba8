//! CMD: found, started, and its end passed on as env(1) and shells have it.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use crate::failure::{Failure, Status};

/// Where execvp(3) looks when PATH is not set.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// A command that is there and may be executed.
#[derive(Debug)]
pub(crate) struct Resolved<'a> {
    program: PathBuf,
    words: &'a [OsString],
}

/// Finds the program that CMD names, before anything is traced for it.
pub(crate) fn resolve(words: &[OsString]) -> Result<Resolved<'_>, Failure> {
    let name = words.first().expect("invariant: the command line asks for at least one word");
    let search = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    let program = find(name, &search)?;
    Ok(Resolved { program, words })
}

impl Resolved<'_> {
    /// As it could be typed into a shell, for a person.
    pub(crate) fn line(&self) -> String {
        self.words.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    /// Starts it with this process's stdin, stdout, stderr, environment and process group.
    pub(crate) fn start(&self) -> Result<Child, Failure> {
        let mut command = Command::new(&self.program);
        command.arg0(&self.words[0]).args(&self.words[1..]);
        command.spawn().map_err(|error| refused(&self.program, &error))
    }
}

/// A line on an end that a person would want to know of: shells are told by nobody that CMD was killed.
pub(crate) fn remark(status: ExitStatus) -> Option<String> {
    let core = if status.core_dumped() { ", and dumped core" } else { "" };
    status.signal().map(|signal| format!("the command was killed by signal {signal}{core}"))
}

/// What blkkin exits with when CMD ended so.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    // Statuses and signals' numbers fit: the kernel keeps 8 bits of one and 7 of the other.
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// execvp's rule: a name with a slash is a path, any other is looked for in each folder of PATH; a file that is
/// there but may not be executed is passed over and remembered. (A folder that may not be looked into says
/// nothing; execvp takes it for such a file.)
fn find(name: &OsStr, search: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        let path = Path::new(name);
        return executable(path).map(|()| path.to_owned()).map_err(|error| refused(path, &error));
    }
    let mut forbidden = None;
    for folder in std::env::split_paths(search).filter(|_| !name.is_empty()) {
        let path = if folder.as_os_str().is_empty() { Path::new(".").join(name) } else { folder.join(name) };
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if path.is_file() => forbidden = Some((path, error)),
            Err(_) => {}
        }
    }
    match forbidden {
        Some((path, error)) => Err(refused(&path, &error)),
        None => Err(Failure {
            what: format!("cannot find command `{shown}`"),
            why: format!("it is in none of the folders of PATH ({})", search.to_string_lossy()),
            remedy: format!("the path of the program, such as ./{shown}, or install it"),
            status: Status::NotFound,
        }),
    }
}

/// Whether this user may execute it. The kernel has the last word when it is started.
fn executable(path: &Path) -> io::Result<()> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a file"));
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL and outlives the call.
    match unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::X_OK, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    let (status, remedy) = match error.kind() {
        io::ErrorKind::NotFound if path.exists() => {
            (Status::NotFound, format!("install the interpreter that the first line of {shown} names"))
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            (Status::NotFound, "a path that exists".to_owned())
        }
        io::ErrorKind::PermissionDenied if path.is_dir() => {
            (Status::NotExecutable, "the path of a program".to_owned())
        }
        io::ErrorKind::PermissionDenied if !path.exists() => {
            (Status::NotExecutable, "a user who may look into its folder, or sudo".to_owned())
        }
        io::ErrorKind::PermissionDenied => (Status::NotExecutable, format!("chmod +x {shown}")),
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
            (Status::NotExecutable, format!("sh {shown}, or #!/bin/sh as its first line"))
        }
        _ => (Status::NotExecutable, format!("run {shown} without blkkin: the reason should be the same")),
    };
    Failure { what: format!("cannot execute {shown}"), why: error.to_string(), remedy, status }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn file(folder: &Path, name: &str, mode: u32) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        let path = folder.join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn the_first_that_may_be_executed_is_taken() {
        let temp = tempfile::tempdir().unwrap();
        let (first, second) = (temp.path().join("1"), temp.path().join("2"));
        file(&first, "tool", 0o644);
        let good = file(&second, "tool", 0o755);
        let search = std::env::join_paths([&first, &second]).unwrap();
        assert_eq!(find("tool".as_ref(), &search).unwrap(), good);
        let failure = find("tool".as_ref(), first.as_os_str()).unwrap_err();
        assert_eq!(failure.status, Status::NotExecutable);
        assert!(failure.remedy.starts_with("chmod +x"), "{failure}");
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for name in ["no-such-tool", "./no-such-tool", ""] {
            let failure = find(name.as_ref(), "/bin".as_ref()).unwrap_err();
            assert_eq!(failure.status, Status::NotFound, "{name}");
        }
    }

    #[test]
    fn a_folder_is_not_executable() {
        let failure = find("/".as_ref(), "".as_ref()).unwrap_err();
        assert_eq!(failure.status, Status::NotExecutable);
    }

    #[test]
    fn a_script_without_its_interpreter_is_told_apart() {
        let temp = tempfile::tempdir().unwrap();
        let path = file(temp.path(), "script", 0o755);
        fs::write(&path, "#!/no/such/interpreter\n").unwrap();
        let words = [path.into_os_string()];
        let failure = resolve(&words).unwrap().start().unwrap_err();
        assert_eq!(failure.status, Status::NotFound);
        assert!(failure.remedy.contains("interpreter"), "{failure}");
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        assert_eq!(quoted("--size=4k"), "--size=4k");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn ends_are_passed_on() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), ExitCode::from(3));
        assert_eq!(exit_code(ExitStatus::from_raw(libc::SIGKILL)), ExitCode::from(137));
        assert_eq!(exit_code(ExitStatus::from_raw(libc::SIGSEGV | 0x80)), ExitCode::from(139));
    }
}
