//! The three long-running services: `blkkin agent`, `blkkin aggregator` and `blkkin exporter`.

pub(crate) mod agent;
pub(crate) mod aggregator;
pub(crate) mod exporter;
