//! Data that the tracer adds to the records of the eBPF programs.
//!
//! *In*: the tracer's own events, and facts of this machine (sysfs, /proc, ELF files, memory of
//! processes). *Out*: marks of traced tasks ([`tasks`]), before tracing starts; names of block
//! devices ([`devices`]), client spans of NBD requests ([`nbd`]), USDT events ([`usdt`]),
//! OpenTelemetry contexts (`contexts`), names of virtual machines (`virtual_machines`) and of their disks
//! (`machine_disks`, `nbd_disks`), while it runs.

pub mod tasks;

pub mod devices;

pub(crate) mod contexts;
pub(crate) mod machine_disks;
pub mod nbd;
pub(crate) mod nbd_disks;
pub(crate) mod page_origins;
pub mod usdt;
pub(crate) mod virtual_machines;
