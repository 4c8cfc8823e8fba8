//! Parts that all services share: metrics and health endpoint, systemd notifications, Kafka
//! settings, the wait for a cluster.
//!
//! ```text
//! ServiceStatus ── /metrics, OpenMetrics ── Prometheus
//!    │               /health, POST /dump
//!    └── systemd: READY=1, WATCHDOG=1, STOPPING=1
//! ClusterWait ──── until the Kafka cluster is usable
//! LagGauge ─────── consumer group lag
//! ```
//!
//! *In*: the counters that a service keeps. *Out*: metrics, health and readiness. *Invariant*: a
//! scrape reads the counters of the service itself, so the metrics and the shutdown summary cannot
//! differ.
//!
//! A service is healthy when work progresses, not when its process exists. Each worker beats once
//! per iteration ([`Heartbeat`]). Without beats, systemd restarts the service and `/health` fails.

mod bearer_auth;
mod cluster_wait;
mod endpoint;
mod heartbeat;
pub(crate) mod kafka;
mod lag;
mod main_loop;
mod openmetrics;
mod outage;
mod peer;
mod rfc3339;
mod systemd;

pub(crate) use cluster_wait::ClusterWait;
pub(crate) use endpoint::{Endpoint, Port};
pub(crate) use heartbeat::Heartbeat;
pub(crate) use lag::LagGauge;
pub(crate) use main_loop::{ServiceEvent, next_event};
pub(crate) use openmetrics::{
    DumpAnswer, Exemplar, Histogram, Labels, MetricFamily, MetricKind, Sample, ServiceStatus,
};
pub(crate) use outage::Outage;
pub(crate) use peer::peer_credentials;
pub(crate) use rfc3339::format_utc;
pub(crate) use systemd::{FdStore, Systemd};
