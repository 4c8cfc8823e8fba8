//! What the tests of the agent's spool and of what outlives it are made of: who calls, the agent, what holds its counters when it is
//! killed, and what the topic has in the end.

pub(crate) mod agent;
pub(crate) mod bpffs;
pub(crate) mod caller;
pub(crate) mod manager;
pub(crate) mod topic;
