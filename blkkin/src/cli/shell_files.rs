//! Completions of shells and manual pages.
//!
//! *In*: the definition of the command line. *Out*: a script on standard output; a page for each command in a
//! folder. *Invariant*: both have every option that `--help` has, because all three are of one definition.
//! `cargo xtask dist` puts them into the packages.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::error::{CliError, Status};

#[derive(Debug, Args)]
#[command(
    after_help = "For this shell alone: source <(blkkin completions bash). The Debian package installs them."
)]
pub(crate) struct CompletionsArgs {
    /// Shell that reads them
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManualPagesArgs {
    /// Folder, which exists
    folder: PathBuf,
}

/// Prints a completion script.
pub(crate) fn completions(args: &CompletionsArgs, mut definition: Command) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition, "blkkin", &mut script);
    // A closed stdout has no reader.
    let _ = std::io::stdout().write_all(&script);
    Ok(Status::Success.code())
}

/// Writes `blkkin.1`, `blkkin-run.1` and the other pages.
pub(crate) fn manual_pages(args: &ManualPagesArgs, definition: Command) -> Result<ExitCode, CliError> {
    clap_mangen::generate_to(definition, &args.folder).map_err(|error| {
        let what = format!("cannot write the manual pages to {}", args.folder.display());
        CliError::usage(what, error, "a folder that exists and is writable")
    })?;
    Ok(Status::Success.code())
}
