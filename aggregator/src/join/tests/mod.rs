//! Tests of the join's public interface: events in, traces out.

mod async_io;
mod bounds;
mod clones;
mod commit;
pub(super) mod local;
mod page_fault;
mod page_origin;
pub(crate) mod property;
mod snapshot;
pub(crate) mod world;
