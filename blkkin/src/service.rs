//! What a service owes the machine that it runs on: it says when it is ready and that it is alive, what became of everything,
//! and how it is.
//!
//! ```text
//! Figures ── /metrics, OpenMetrics ── Prometheus
//!    │         /health
//!    └── manager: READY=1, WATCHDOG=1, STOPPING=1 ── systemd
//! Search ─── until there is a cluster to work with
//! LagGauge ─ how far its groups are behind there
//! ```
//!
//! *In*: what a service counts anyway. *Out*: the same, to whoever asks. *Invariant*: nothing is counted a second time for
//! it: a scrape reads the books as they are, so what is shown there and what is said at the end cannot differ.
//!
//! *Alive* is not "the process is there" but "work went on": whoever works says so at each round ([`Pulse`]), and a service
//! whose rounds stay away is not alive for the manager, who starts it again, nor healthy for who asks.

mod endpoint;
mod figures;
mod lag;
mod manager;
mod moment;
mod pulse;
mod search;
mod token;
mod trouble;

pub(crate) use endpoint::{Endpoint, Port, Where};
pub(crate) use figures::{Example, Family, Figures, Kind, Labels, Sample, Times};
pub(crate) use lag::LagGauge;
pub(crate) use manager::{Manager, Store};
pub(crate) use moment::utc;
pub(crate) use pulse::Pulse;
pub(crate) use search::Search;
pub(crate) use trouble::Trouble;
