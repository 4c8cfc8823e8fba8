//! Configuration of the agent: its domain, and checks of its options.

use blkkin_wire::ids::NodeId;

use crate::cli::{AgentArgs, LttngArgs};
use crate::error::CliError;

/// Parses a machine id in the form of /etc/machine-id.
pub(super) fn domain(value: &str) -> Result<NodeId, CliError> {
    let fits = value.len() == 32 && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = fits.then(|| u128::from_str_radix(value, 16).ok()).flatten();
    id.map(NodeId).ok_or_else(|| {
        let why = "the format is 32 hexadecimal digits, as in /etc/machine-id";
        CliError::usage(
            format!("bad machine id `{value}`"),
            why,
            "--domain $(cat /etc/machine-id), of the host",
        )
    })
}

/// Rejects options that capture data in combination with `--replay`.
pub(super) fn reject_capture_with_replay(args: &AgentArgs) -> Result<(), CliError> {
    let (option, data) = match args.lttng {
        LttngArgs { ust: true, .. } => ("--ust", "LTTng data"),
        LttngArgs { nbd: true, .. } => ("--nbd", "NBD data"),
        _ if !args.usdt.probes.is_empty() => ("--probes", "USDT data"),
        _ if args.filter.sample.is_some() => ("--sample", "each operation"),
        _ => return Ok(()),
    };
    if args.replay.is_none() {
        return Ok(());
    }
    let why = format!("{data} is part of the recording, or was not recorded");
    Err(CliError::usage(
        format!("{option} does not work with --replay"),
        why,
        format!("{option} with --record"),
    ))
}
