//! Which spool an agent has, by its words and by what its manager gives it.

use std::path::PathBuf;

use blkkin_bus::spool::{BYTES_MIN, Spool};

use crate::args::{AgentArgs, SpoolChoice};
use crate::failure::Failure;
use crate::output::say;
use crate::what::units;

/// What systemd's `StateDirectory=` gives a service, several with colons between.
const STATE: &str = "STATE_DIRECTORY";
const FOLDER: &str = "spool";

/// Opens it, if there is to be one: what was said, or a folder of its own where its manager keeps its state.
pub(super) fn open(args: &AgentArgs) -> Result<Option<Spool>, Failure> {
    let bytes_max = bytes_max(&args.spool_max)?;
    let folder = match &args.spool {
        Some(SpoolChoice::Off) => None,
        Some(SpoolChoice::In(folder)) => Some(folder.clone()),
        None => state().map(|state| state.join(FOLDER)),
    };
    let Some(folder) = folder else { return Ok(None) };
    let what = || format!("cannot use the spool {}", folder.display());
    let spool = Spool::open(&folder, bytes_max).map_err(|error| {
        Failure::cannot_trace(what(), error, "--spool with a folder that can be written, or --spool off")
    })?;
    let Some(spool) = spool else {
        let remedy = "--spool with a folder of its own for each agent";
        return Err(Failure::cannot_trace(what(), "another agent uses it", remedy));
    };
    let counts = spool.counts();
    if counts.found + counts.torn > 0 {
        let mut line =
            format!("{} batches of earlier starts in the spool {} go first", counts.found, folder.display());
        if counts.torn > 0 {
            line.push_str(&format!("; {} are cut short, and lost", counts.torn));
        }
        say(&line);
    }
    Ok(Some(spool))
}

fn state() -> Option<PathBuf> {
    let folders = std::env::var_os(STATE)?;
    std::env::split_paths(&folders).find(|folder| folder.is_absolute())
}

fn bytes_max(word: &str) -> Result<u64, Failure> {
    let bytes = units::bytes(word).filter(|bytes| *bytes >= BYTES_MIN);
    bytes.ok_or_else(|| {
        let why = format!("it is a number of bytes, {}M at the least", BYTES_MIN >> 20);
        Failure::usage(format!("bad size `{word}` for --spool-max"), why, "--spool-max 1G; units are K, M, G")
    })
}
