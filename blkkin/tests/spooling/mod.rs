//! Support for tests of the agent's spool and of its persistent counters: a calling thread, the
//! agent, a service manager and a BPF file system that keep counters, and the topic's content.

pub(crate) mod agent;
pub(crate) mod bpffs;
pub(crate) mod caller;
pub(crate) mod manager;
pub(crate) mod topic;

use std::time::Duration;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
