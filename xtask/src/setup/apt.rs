//! apt for the packages of this machine's release or of another release of Debian.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Debian's archive key, installed by Debian.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with options that select the release and its folders.
#[derive(Default)]
pub(super) struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// Configures package lists of another release of Debian, in a separate folder, from this
    /// machine's mirror.
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

    /// Prepares an apt program. As root apt would download as a user that may not write below
    /// `target/`.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-o", "APT::Sandbox::User=root"]);
        self.options.iter().for_each(|option| {
            command.args(["-o", option]);
        });
        command
    }
}

/// Returns the URL of this machine's mirror of Debian.
fn mirror() -> Result<String> {
    let form = "$(ORIGIN)|$(LABEL)|$(REPO_URI)";
    let targets = shell::capture(Command::new("apt-get").args(["indextargets", "--format", form]))?;
    let found = targets.lines().find_map(|line| line.strip_prefix("Debian|Debian|"));
    found.map(str::to_owned).context("this machine's apt has no Debian mirror")
}
