//! apt, asked about this machine's release or another one of Debian.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Debian's own key, where Debian puts it.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt, with the options that make it look where we want.
#[derive(Default)]
pub(super) struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// The lists of another release of Debian, in a folder of their own, from the mirror that this machine uses.
    pub(super) fn of_suite(suite: &str, folder: &Path) -> Result<Self> {
        let lists = folder.join("lists/partial");
        let archives = folder.join("cache/archives/partial");
        for folder in [&lists, &archives] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let sources = folder.join("sources.list");
        let line = format!("deb [arch=amd64 signed-by={KEYRING}] {} {suite} main\n", mirror()?);
        fs::write(&sources, line).with_context(|| format!("cannot write {}", sources.display()))?;
        let options = [
            format!("Dir::Etc::SourceList={}", sources.display()),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", folder.join("lists").display()),
            format!("Dir::Cache={}", folder.join("cache").display()),
            "Acquire::Languages=none".to_owned(),
        ];
        Ok(Self { options: options.to_vec() })
    }

    /// As root apt would fetch as a user who may not write below `target/`.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-o", "APT::Sandbox::User=root"]);
        self.options.iter().for_each(|option| {
            command.args(["-o", option]);
        });
        command
    }
}

/// Where this machine has Debian from.
fn mirror() -> Result<String> {
    let form = "$(ORIGIN)|$(LABEL)|$(REPO_URI)";
    let targets = shell::capture(Command::new("apt-get").args(["indextargets", "--format", form]))?;
    let found = targets.lines().find_map(|line| line.strip_prefix("Debian|Debian|"));
    found.map(str::to_owned).context("this machine's apt has no mirror of Debian")
}
