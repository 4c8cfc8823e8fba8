//! A program that executes a script of arguments in a folder of its own, and waits where the script
//! specifies.

use std::path::PathBuf;

use tempfile::TempDir;

use super::Programs;
use crate::support::gated_process::GatedProcess;

pub(crate) struct ScriptedProgram {
    pub(crate) process: GatedProcess,
    folder: TempDir,
}

impl ScriptedProgram {
    /// Creates the program with these arguments; `await=NAME` waits for a file in its own folder.
    pub(crate) fn new(programs: &Programs, script: &[&str]) -> ScriptedProgram {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), [0; 4096]).unwrap();
        let path_of = |name: &str| folder.path().join(name).display().to_string();
        let arg = |arg: &&str| match arg.strip_prefix("await=") {
            Some(name) => format!("await={}", path_of(name)),
            None => (*arg).to_owned(),
        };
        let mut args = vec![programs.program(), path_of("file")];
        args.extend(script.iter().map(arg));
        let process = GatedProcess::program(&args, &folder.path().join("out"));
        ScriptedProgram { process, folder }
    }

    /// Creates the file that the program waits for.
    pub(crate) fn proceed(&self, name: &str) {
        std::fs::write(self.path(name), "").unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
