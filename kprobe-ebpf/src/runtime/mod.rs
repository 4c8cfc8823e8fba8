//! Runtime of the programs: kernel reads, hook arguments, per-CPU state, tables, frozen settings
//! and offsets, the rings, records that are deferred until their operation ends, and the programs'
//! own time. Nothing in it depends on the other modules.

pub mod arch;
pub mod arguments;
pub mod atomic;
pub mod bucket;
pub mod deferred;
pub mod layout;
pub mod percpu;
pub mod read;
pub mod ring;
pub mod settings;
pub mod table;
pub mod timing;
