//! CMD: resolved, started, and its exit status passed on as env(1) and shells do.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use crate::error::{CliError, Status};

/// The search path of execvp(3) without PATH.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// A command that exists and may be executed.
#[derive(Debug)]
pub(crate) struct ResolvedCommand<'a> {
    program: PathBuf,
    argv: &'a [OsString],
}

/// Resolves the program that CMD names, before tracing starts.
pub(crate) fn resolve(argv: &[OsString]) -> Result<ResolvedCommand<'_>, CliError> {
    let name = argv.first().expect("invariant: the command line requires at least one argument");
    let search = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    let program = find_in_path(name, &search)?;
    Ok(ResolvedCommand { program, argv })
}

impl ResolvedCommand<'_> {
    /// Returns the command line in shell syntax.
    pub(crate) fn shell_line(&self) -> String {
        self.argv.iter().map(|word| shell_quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    /// Starts the command with this process's stdin, stdout, stderr, environment and process group.
    pub(crate) fn start(&self) -> Result<Child, CliError> {
        let mut command = Command::new(&self.program);
        command.arg0(&self.argv[0]).args(&self.argv[1..]);
        command.spawn().map_err(|error| exec_error(&self.program, &error))
    }
}

/// Returns a note if a signal killed CMD; a shell does not report that.
pub(crate) fn killed_by_signal(status: ExitStatus) -> Option<String> {
    let core = if status.core_dumped() { ", and dumped core" } else { "" };
    status.signal().map(|signal| format!("the command was killed by signal {signal}{core}"))
}

/// Maps CMD's exit to blkkin's exit code.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    // Both fit: the kernel keeps 8 bits of a status and 7 of a signal number.
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Searches PATH as execvp does. A name with a slash is a path; any other is searched in each
/// folder of PATH. A file that exists but may not be executed is skipped and remembered. (execvp
/// also takes a folder that may not be searched for such a file.)
fn find_in_path(name: &OsStr, search: &OsStr) -> Result<PathBuf, CliError> {
    let displayed = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        let path = Path::new(name);
        return executable(path).map(|()| path.to_owned()).map_err(|error| exec_error(path, &error));
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
        Some((path, error)) => Err(exec_error(&path, &error)),
        None => Err(CliError {
            what: format!("cannot find command `{displayed}`"),
            why: format!("not in any folder of PATH ({})", search.to_string_lossy()),
            remedy: format!("the path of the program, such as ./{displayed}, or install it"),
            status: Status::NotFound,
        }),
    }
}

/// Checks whether this user may execute the file; the kernel decides at exec.
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

fn exec_error(path: &Path, error: &io::Error) -> CliError {
    let displayed = path.display();
    let (status, remedy) = match error.kind() {
        io::ErrorKind::NotFound if path.exists() => {
            (Status::NotFound, format!("install the interpreter that the first line of {displayed} names"))
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            (Status::NotFound, "a path that exists".to_owned())
        }
        io::ErrorKind::PermissionDenied if path.is_dir() => {
            (Status::NotExecutable, "the path of a program".to_owned())
        }
        io::ErrorKind::PermissionDenied if !path.exists() => {
            (Status::NotExecutable, "a user with search permission for its folder, or sudo".to_owned())
        }
        io::ErrorKind::PermissionDenied => (Status::NotExecutable, format!("chmod +x {displayed}")),
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
            (Status::NotExecutable, format!("sh {displayed}, or #!/bin/sh as its first line"))
        }
        _ => {
            (Status::NotExecutable, format!("run {displayed} without blkkin: the reason should be the same"))
        }
    };
    CliError { what: format!("cannot execute {displayed}"), why: error.to_string(), remedy, status }
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
    fn first_executable_file_in_path_is_chosen() {
        let temp = tempfile::tempdir().unwrap();
        let (first, second) = (temp.path().join("1"), temp.path().join("2"));
        file(&first, "tool", 0o644);
        let good = file(&second, "tool", 0o755);
        let search = std::env::join_paths([&first, &second]).unwrap();
        assert_eq!(find_in_path("tool".as_ref(), &search).unwrap(), good);
        let error = find_in_path("tool".as_ref(), first.as_os_str()).unwrap_err();
        assert_eq!(error.status, Status::NotExecutable);
        assert!(error.remedy.starts_with("chmod +x"), "{error}");
    }

    #[test]
    fn missing_command_is_not_found() {
        for name in ["no-such-tool", "./no-such-tool", ""] {
            let error = find_in_path(name.as_ref(), "/bin".as_ref()).unwrap_err();
            assert_eq!(error.status, Status::NotFound, "{name}");
        }
    }

    #[test]
    fn folder_is_not_executable() {
        let error = find_in_path("/".as_ref(), "".as_ref()).unwrap_err();
        assert_eq!(error.status, Status::NotExecutable);
    }

    #[test]
    fn missing_interpreter_is_reported() {
        let temp = tempfile::tempdir().unwrap();
        let path = file(temp.path(), "script", 0o755);
        fs::write(&path, "#!/no/such/interpreter\n").unwrap();
        let argv = [path.into_os_string()];
        let error = resolve(&argv).unwrap().start().unwrap_err();
        assert_eq!(error.status, Status::NotFound);
        assert!(error.remedy.contains("interpreter"), "{error}");
    }

    #[test]
    fn arguments_are_quoted_for_the_shell() {
        assert_eq!(shell_quoted("--size=4k"), "--size=4k");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
        assert_eq!(shell_quoted(""), "''");
    }

    #[test]
    fn exit_statuses_are_passed_on() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), ExitCode::from(3));
        assert_eq!(exit_code(ExitStatus::from_raw(libc::SIGKILL)), ExitCode::from(137));
        assert_eq!(exit_code(ExitStatus::from_raw(libc::SIGSEGV | 0x80)), ExitCode::from(139));
    }
}
