//! The shutdown summary of the agent.

use std::process::ExitCode;

use tracing::info;

use super::send_totals::{DRAIN_TIMEOUT, SendTotals};
use crate::error::{CliError, Status};

/// Logs the totals; returns an error if events were not delivered.
pub(super) fn summary(totals: SendTotals, target: &str, records_lost: u64) -> Result<ExitCode, CliError> {
    let SendTotals { deliveries, oversize, left, unanswered, spooled, refused } = totals;
    let delivered = deliveries.delivered;
    info!(
        delivered,
        records_lost,
        "{delivered} events delivered to {target}; {records_lost} records lost before the agent"
    );
    if let Some((batches, folder)) = spooled {
        let folder = folder.display();
        info!(batches, %folder, "{batches} batches stay in the spool {folder}: the next start sends them");
    }
    let missing = deliveries.failed + unanswered + oversize + left;
    if missing == 0 {
        return Ok(Status::Success.code());
    }
    let (because, remedy) = match refused {
        Some(error) => (format!(" ({})", error.why), error.remedy),
        None => {
            let remedy = format!("check {}: that a broker answers there, and the topic's settings", target);
            (String::new(), remedy)
        }
    };
    Err(CliError {
        status: Status::Failed,
        ..CliError::usage(
            format!("{missing} events were not delivered"),
            format!(
                "{} were refused{because}, {unanswered} not acknowledged in {} s, {left} not queued, {oversize} larger than a record",
                deliveries.failed,
                DRAIN_TIMEOUT.as_secs()
            ),
            remedy,
        )
    })
}
