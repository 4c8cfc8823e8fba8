//! One of blkkin's services as a process: started, killed, asked to end; what it said lies in a file.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common;

/// Killed with the test, however that ends.
pub(crate) struct Service {
    words: Vec<String>,
    process: Child,
    said: PathBuf,
    /// What those before it have said: bytes. None have been before the first.
    before: Option<usize>,
}

impl Service {
    /// `blkkin WORDS`, with what it says in `NAME.said` of this folder.
    pub(crate) fn start(folder: &Path, name: &str, words: &[&str]) -> Service {
        let said = folder.join(format!("{name}.said"));
        let words = words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let process = spawn(&words, &said);
        Service { words, process, said, before: None }
    }

    /// The same, by a command that was changed before: other variables, a socket to inherit. Only its own words are in the
    /// file, and it cannot be started again.
    pub(crate) fn start_by(
        folder: &Path,
        name: &str,
        words: &[&str],
        change: impl FnOnce(Command) -> Command,
    ) -> Service {
        let said = folder.join(format!("{name}.said"));
        fs::write(&said, "").unwrap();
        let process = started(change(common::blkkin(words)), &said);
        Service { words: Vec::new(), process, said, before: None }
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// All that it has said, and those that ran before it under its name.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    /// SIGKILL. False where it had ended by itself, and well: then there is nobody to kill.
    pub(crate) fn kill(&mut self) -> bool {
        if self.has_ended() {
            return false;
        }
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        true
    }

    /// The same again, after its end.
    pub(crate) fn start_again(&mut self) {
        self.before = Some(self.said().len());
        self.process = spawn(&self.words, &self.said);
    }

    /// Whether it has ended by itself; it has nothing to complain of. But a broker may hear who was killed after who came back under
    /// its name, and then shows the latter out (docs/kafka.md): a manager starts it again.
    pub(crate) fn has_ended(&mut self) -> bool {
        let ended = self.process.try_wait().unwrap();
        ended.is_some_and(|status| {
            let (said, fenced) = (self.said(), "Static consumer fenced");
            let shown_out = self.before.is_some_and(|before| said[before..].contains(fenced));
            assert!(status.success() || shown_out, "{status}: {said}");
            true
        })
    }

    /// Asks it to end, as a service manager would; its status and its words.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        if self.process.try_wait().unwrap().is_none() {
            // SAFETY: numbers only; the process has not been waited for.
            unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGTERM) };
        }
        self.wait()
    }

    /// Waits until it ends by itself; its status and its words.
    pub(crate) fn wait(&mut self) -> (Option<i32>, String) {
        let status = self.process.wait().unwrap();
        (status.code(), self.said())
    }

    /// Waits until it says so.
    pub(crate) fn says(&self, words: &str, patience: Duration) {
        let begun = Instant::now();
        while !self.said().contains(words) {
            assert!(begun.elapsed() < patience, "no `{words}` in:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn spawn(words: &[String], said: &Path) -> Child {
    assert!(!words.is_empty(), "what was started by a command of its own is not started again");
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    started(common::blkkin(&words), said)
}

fn started(mut command: Command, said: &Path) -> Child {
    let stderr = fs::OpenOptions::new().append(true).create(true).open(said).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap()
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
