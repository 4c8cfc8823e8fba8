//! Events and facts beyond the block layer's records: traced tasks, device names, NBD client spans,
//! USDT events, and OpenTelemetry contexts.

pub mod tasks;

pub mod devices;

pub(crate) mod contexts;
pub mod nbd;
pub mod usdt;
