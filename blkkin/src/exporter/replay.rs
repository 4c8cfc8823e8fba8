//! `blkkin exporter replay --from TIME`: what lies in the topic since then is delivered again by the next exporter.

use std::process::ExitCode;
use std::time::SystemTime;

use blkkin_bus::kafka::{KafkaError, Settings, TRACES};

use super::{Route, time};
use crate::failure::{Failure, Status};
use crate::output::say;

/// Sets the group of each destination back.
pub(super) fn replay(settings: &Settings, routes: &[Route], from: &str) -> Result<ExitCode, Failure> {
    let since_ms = time::since_ms("--from", from, SystemTime::now())?;
    for route in routes {
        let rewound = settings.rewind(&route.group, TRACES, since_ms).map_err(failed)?;
        say(&format!(
            "{} records of {} partitions will be delivered again to {}, by the next exporter",
            rewound.records, rewound.partitions, route.destination
        ));
    }
    Ok(Status::Success.code())
}

/// For a person.
pub(super) fn failed(error: KafkaError) -> Failure {
    Failure { status: Status::Failed, ..Failure::usage(error.what, error.why, error.remedy) }
}
