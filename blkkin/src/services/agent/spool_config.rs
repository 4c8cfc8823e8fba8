//! The spool of an agent, from its options and from systemd's state directory.

use std::path::{Path, PathBuf};

use blkkin_bus::spool::{BYTES_MIN, Spool};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use tracing::info;

use crate::cli::units;
use crate::cli::{AgentArgs, SpoolChoice};
use crate::error::CliError;

/// The variable that systemd's `StateDirectory=` sets; several folders are separated by colons.
const STATE: &str = "STATE_DIRECTORY";
const FOLDER: &str = "spool";

/// Opens the configured spool, or one in the service's state directory; `None` without either.
pub(super) fn open(args: &AgentArgs) -> Result<Option<Spool>, CliError> {
    let bytes_max = bytes_max(&args.spool_max)?;
    let folder = match &args.spool {
        Some(SpoolChoice::Off) => None,
        Some(SpoolChoice::Folder(folder)) => Some(folder.clone()),
        None => state().map(|state| state.join(FOLDER)),
    };
    let Some(folder) = folder else { return Ok(None) };
    let what = || format!("cannot use the spool {}", folder.display());
    let spool = Spool::open(&folder, bytes_max).map_err(|error| {
        CliError::cannot_trace(what(), error, "--spool with a writable folder, or --spool off")
    })?;
    let Some(spool) = spool else {
        let remedy = "--spool with a folder of its own for each agent";
        return Err(CliError::cannot_trace(what(), "another agent uses it", remedy));
    };
    let counts = spool.stats();
    if counts.recovered + counts.corrupt > 0 {
        let mut line = format!(
            "{} batches of earlier starts in the spool {} are sent first",
            counts.recovered,
            folder.display()
        );
        if counts.corrupt > 0 {
            line.push_str(&format!("; {} are truncated and lost", counts.corrupt));
        }
        info!(recovered = counts.recovered, corrupt = counts.corrupt, "{line}");
    }
    Ok(Some(spool))
}

/// Checks that the agent can write the folder also without the capabilities that it has dropped.
pub(super) fn check_writable(folder: &Path) -> Result<(), CliError> {
    accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(|error| {
        let why = format!("{error} without CAP_DAC_OVERRIDE, which the agent drops when it traces");
        let remedy = format!("chown {} to the agent's user", folder.display());
        CliError::cannot_trace(format!("cannot use the folder {}", folder.display()), why, remedy)
    })
}

fn state() -> Option<PathBuf> {
    let folders = std::env::var_os(STATE)?;
    std::env::split_paths(&folders).find(|folder| folder.is_absolute())
}

fn bytes_max(word: &str) -> Result<u64, CliError> {
    let bytes = units::bytes(word).filter(|bytes| *bytes >= BYTES_MIN);
    bytes.ok_or_else(|| {
        let why = format!("it must be a number of bytes, at least {}M", BYTES_MIN >> 20);
        CliError::usage(
            format!("bad size `{word}` for --spool-max"),
            why,
            "--spool-max 1G; units are K, M, G",
        )
    })
}
