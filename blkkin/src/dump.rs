//! `blkkin dump`: asks an agent for a dump of its flight recorder.
//!
//! *In*: the address of the agent's endpoint, and its token. *Out*: what the agent answers, a line of text. *Invariant*:
//! exit status 0 only if the agent has accepted the request.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use crate::cli::DumpArgs;
use crate::error::{CliError, Status};

/// Time limit of the whole request. The agent answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Requests the dump and prints the answer.
pub(crate) fn dump(args: &DumpArgs) -> Result<ExitCode, CliError> {
    let config = ureq::Agent::config_builder()
        .proxy(None)
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .build();
    let agent = config.new_agent();
    let mut request = agent.post(format!("http://{}/dump", args.agent));
    if let Some(file) = &args.token {
        let text = std::fs::read_to_string(file).map_err(|error| {
            let what = format!("cannot read the token in {}", file.display());
            CliError::usage(what, error, "--token FILE, readable by this user")
        })?;
        let token = text.lines().next().unwrap_or_default().trim();
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let failed = |why: String, remedy: &str| {
        let what = format!("the agent at {} makes no dump", args.agent);
        CliError { status: Status::Failed, ..CliError::usage(what, why, remedy) }
    };
    let mut response = request.send_empty().map_err(|error| {
        failed(error.to_string(), "the address of its metrics (blkkin agent --metrics), and a running agent")
    })?;
    let status = response.status().as_u16();
    let answer = response.body_mut().read_to_string().unwrap_or_default();
    match status {
        202 => {
            // A closed stdout has no reader.
            let _ = std::io::stdout().write_all(answer.as_bytes());
            Ok(ExitCode::SUCCESS)
        }
        401 => Err(failed(answer.trim_end().to_owned(), "--token FILE, the agent's --metrics-token")),
        404 | 405 => {
            Err(failed("no agent of this version listens there".to_owned(), "the address of its metrics"))
        }
        409 => Err(failed(answer.trim_end().to_owned(), "blkkin agent --flight-recorder 30s")),
        _ => Err(failed(answer.trim_end().to_owned(), "a later attempt")),
    }
}
