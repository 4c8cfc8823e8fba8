//! The `lttng` command.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a command may take: the session daemon answers in some ms, and waits for data at an end of tracing.
const WITHIN: Duration = Duration::from_secs(20);

/// Why LTTng did not do as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It is not installed, or cannot be started.
    #[error("cannot run {program}: {error} (is lttng-tools installed?)")]
    Start {
        /// What was started.
        program: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// It says no.
    #[error("`lttng {command}`: {said}")]
    Said {
        /// What was asked.
        command: String,
        /// Its words.
        said: String,
    },
    /// It says nothing.
    #[error("`lttng {0}` took longer than {WITHIN:?}")]
    Late(String),
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
}

/// How the command is run.
#[derive(Clone, Default, Debug)]
pub struct Tool {
    /// Words before the program's name: another name space, another user.
    pub prefix: Vec<String>,
    /// Variables: LTTNG_HOME says whose daemons are meant.
    pub variables: Vec<(String, String)>,
}

impl Tool {
    /// A command in the daemons' surroundings.
    pub fn command(&self, program: &str) -> Command {
        let mut words = self.prefix.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// `lttng …`; what it prints.
    pub fn lttng(&self, args: &[&str]) -> Result<String, ToolError> {
        let mut command = self.command("lttng");
        // Daemons are started by `daemons`, where somebody takes them down again.
        command.arg("--no-sessiond").args(args);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| ToolError::Start { program: "lttng".to_owned(), error })?;
        let (out, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let ended = wait(&mut child, WITHIN);
        let said = [out, errors].map(|thread| thread.join().unwrap_or_default());
        match ended {
            Some(true) => Ok(said.concat()),
            Some(false) => {
                let words = said.concat();
                let words: Vec<&str> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
                Err(ToolError::Said { command: args.join(" "), said: words.join("; ") })
            }
            None => Err(ToolError::Late(args.join(" "))),
        }
    }

    /// True if a session daemon answers.
    pub fn has_daemon(&self) -> bool {
        self.lttng(&["list"]).is_ok()
    }

    /// `2.13` as (2, 13).
    pub fn version(&self) -> Result<(u32, u32), ToolError> {
        let said = self.lttng(&["--version"])?;
        let numbers = said.split_whitespace().find_map(|word| {
            let mut parts = word.split('.').map(str::parse::<u32>);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        });
        numbers.ok_or(ToolError::Said { command: "--version".to_owned(), said })
    }

    /// The names of all sessions.
    pub fn sessions(&self) -> Result<Vec<String>, ToolError> {
        let said = self.lttng(&["--mi=xml", "list"])?;
        let sessions = said.split("<session>").skip(1);
        let name = |session: &str| Some(session.split_once("<name>")?.1.split_once("</name>")?.0.to_owned());
        Ok(sessions.filter_map(name).collect())
    }
}

/// Reads a pipe to its end, so that who writes is never stopped.
fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read until an error is what there is to say.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether it succeeded; none if it did not end in time, and was killed.
pub(crate) fn wait(child: &mut Child, within: Duration) -> Option<bool> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Err(_) => return Some(false),
            Ok(None) if begun.elapsed() > within => {
                // A child that is gone needs no killing.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
