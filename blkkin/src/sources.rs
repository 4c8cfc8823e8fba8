//! Event sources in addition to the kernel's block layer: LTTng-UST, USDT probes and NBD sockets.

pub(crate) mod lttng;
pub(crate) mod nbd;
pub(crate) mod usdt;
