//! Watches one node: loads and attaches the eBPF programs, drains their rings, and says what the layers saw.
//!
//! *In*: records from the rings ([`blkkin_probe_abi::record`]). *Out*: [`EventBatch`](blkkin_wire::batch::EventBatch)es
//! in the order of their times, each with a watermark and the node's accounts.
//!
//! In flow order: [`config`] says what is wanted; [`layout`] where this kernel keeps its fields,
//! and [`kernel`] whether it has what every trace needs; [`probes`] which
//! hooks there are, [`functions`] which functions say the same, `programs` how one is attached, and `missed` what
//! it did not see; `symbols` where its functions are, `edges` how a bio leads to what it does
//! the work of; [`load`] brings the programs in; [`tasks`] marks who is followed; [`rings`] reads; [`decode`]
//! turns hostile bytes into records; [`translate`] turns records into events, and is the only place that knows both
//! vocabularies; [`nbd`] makes one operation of what a program asked an NBD server and what it was told; [`usdt`] hears what threads say at probes of their programs; `context` finds where programs say for which span of their own they call; [`drain`] does this until it is told to stop, and says
//! what had not ended then (`in_flight`). [`mod@doctor`] tries each probe by each kind ([`tries`]) and says what happened.
//!
//! *Invariant*: nothing that works outlives the process: links, programs and rings are held by file descriptors only, so that also
//! kill -9 leaves nothing attached. What may outlive it are counters ([`estate`], [`ledger`]), for whoever asks for it.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod accounts;
mod btf;
pub mod config;
mod context;
pub mod decode;
pub mod devices;
pub mod doctor;
pub mod drain;
mod edges;
pub mod error;
pub mod estate;
#[cfg(test)]
mod frames;
pub mod functions;
mod in_flight;
pub mod kernel;
pub mod layout;
pub mod ledger;
pub mod load;
mod memory;
mod missed;
pub mod nbd;
pub mod operations;
pub mod origin;
mod privilege;
pub mod probes;
mod programs;
mod ring;
pub mod rings;
mod symbols;
pub mod tasks;
pub mod translate;
pub mod tries;
pub mod usdt;

pub use config::{Detail, Filter, Follow, TracerConfig};
pub use context::believed::{Believed, Who};
pub use context::reach::{Reach, reach};
pub use doctor::{DoctorReport, doctor};
pub use drain::{Ended, StopSignal};
pub use error::TracerError;
pub use estate::{Dead, DeadBooks, Estate, Estates, Legacy};
pub use ledger::Ledger;
pub use load::Tracer;
pub use probes::{AttachKind, ProbeVerdict, Verdict};
