//! Totals of sending, to a cluster, a folder or the host.

use std::path::PathBuf;
use std::time::Duration;

use blkkin_bus::kafka::{DeliveryStats, KafkaError};

/// Time for the cluster or the host to accept the remaining records at shutdown.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Totals of the sender.
#[derive(Clone, Debug, Default)]
pub(super) struct SendTotals {
    pub(super) deliveries: DeliveryStats,
    /// Events that are too large for a record.
    pub(super) oversize: u64,
    /// Events that were not queued at shutdown because the queue was full.
    pub(super) left: u64,
    /// Events in flight without an acknowledgement and without a copy in the spool.
    pub(super) unanswered: u64,
    /// Batches left in the spool, and the spool's folder.
    pub(super) spooled: Option<(u64, PathBuf)>,
    /// The cluster's reason for refused records.
    pub(super) refused: Option<KafkaError>,
}
