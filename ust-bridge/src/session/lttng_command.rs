//! The `lttng` command, and the parts of its output that blkkin needs.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum duration of a command. The session daemon answers in some ms, and `destroy` waits for
/// data.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// Error of LTTng's command line or daemons.
#[derive(Debug, thiserror::Error)]
pub enum LttngError {
    /// The program is not installed, or cannot be started.
    #[error("cannot run {program}: {error} (is lttng-tools installed?)")]
    Start {
        /// Program's name.
        program: String,
        /// Operating system's error.
        error: std::io::Error,
    },
    /// The relay cannot be separated from other users.
    #[error("cannot create a network namespace for lttng-relayd, which has no password: {0}")]
    Network(std::io::Error),
    /// The command failed.
    #[error("`lttng {command}`: {output}")]
    Failed {
        /// Arguments of `lttng`.
        command: String,
        /// Output of the command.
        output: String,
    },
    /// The command did not end in time.
    #[error("`lttng {0}` took longer than {COMMAND_TIMEOUT:?}")]
    Timeout(String),
    /// A value of the session's configuration is invalid.
    #[error("{0}")]
    Setup(String),
}

/// Environment in which commands run.
#[derive(Clone, Default, Debug)]
pub struct LttngCommand {
    /// Words before the program's name, to enter another namespace or user.
    pub prefix: Vec<String>,
    /// Environment variables. `LTTNG_HOME` selects the daemons.
    pub variables: Vec<(String, String)>,
}

impl LttngCommand {
    /// Returns a command in the environment of the daemons.
    pub fn command(&self, program: &str) -> Command {
        let mut text = self.prefix.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(text.next().unwrap_or(program));
        command.args(text).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs `lttng` and returns its output.
    pub fn lttng(&self, args: &[&str]) -> Result<String, LttngError> {
        let mut command = self.command("lttng");
        // `LttngDaemons` starts the daemons, so that they are also stopped.
        command.arg("--no-sessiond").args(args);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| LttngError::Start { program: "lttng".to_owned(), error })?;
        let (out, errors) = (read_to_end(child.stdout.take()), read_to_end(child.stderr.take()));
        let ended = wait(&mut child, COMMAND_TIMEOUT);
        let output = [out, errors].map(|thread| thread.join().unwrap_or_default());
        match ended {
            Some(true) => Ok(output.concat()),
            Some(false) => {
                let text = output.concat();
                let text: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
                Err(LttngError::Failed { command: args.join(" "), output: text.join("; ") })
            }
            None => Err(LttngError::Timeout(args.join(" "))),
        }
    }

    /// Returns true if a session daemon answers.
    pub fn has_daemon(&self) -> bool {
        self.lttng(&["list"]).is_ok()
    }

    /// Returns LTTng's version: `2.13` as (2, 13).
    pub fn version(&self) -> Result<(u32, u32), LttngError> {
        let output = self.lttng(&["--version"])?;
        let numbers = output.split_whitespace().find_map(|word| {
            let mut parts = word.split('.').map(str::parse::<u32>);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        });
        numbers.ok_or(LttngError::Failed { command: "--version".to_owned(), output })
    }

    /// Returns the names of all sessions.
    pub fn sessions(&self) -> Result<Vec<String>, LttngError> {
        let output = self.lttng(&["--mi=xml", "list"])?;
        let sessions = output.split("<session>").skip(1);
        let name = |session: &str| Some(session.split_once("<name>")?.1.split_once("</name>")?.0.to_owned());
        Ok(sessions.filter_map(name).collect())
    }
}

/// Reads a pipe to its end, so that the writer never blocks.
fn read_to_end(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // After an error the output read so far is returned.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits until the child exits and returns whether it succeeded; kills it and returns `None` after
/// `timeout`.
pub(crate) fn wait(child: &mut Child, timeout: Duration) -> Option<bool> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Err(_) => return Some(false),
            Ok(None) if started.elapsed() > timeout => {
                // The child may have exited meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
