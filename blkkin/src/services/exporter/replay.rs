//! `blkkin exporter replay --from TIME`: rewinds the groups, so that the next exporter delivers
//! everything since then again.

use std::process::ExitCode;
use std::time::SystemTime;

use blkkin_bus::kafka::{Settings, TRACES};
use tracing::info;

use super::config::Route;
use super::replay_time;
use crate::error::{CliError, Status};
use crate::service::kafka::kafka_failed;

/// Rewinds the consumer group of each destination.
pub(super) fn replay(settings: &Settings, routes: &[Route], from: &str) -> Result<ExitCode, CliError> {
    let since_ms = replay_time::since_ms("--from", from, SystemTime::now())?;
    for route in routes {
        let rewound = settings.rewind(&route.group, TRACES, since_ms).map_err(kafka_failed)?;
        info!(
            records = rewound.records,
            destination = %route.destination,
            "{} records of {} partitions will be delivered again to {} by the next exporter",
            rewound.records,
            rewound.partitions,
            route.destination
        );
    }
    Ok(Status::Success.code())
}
