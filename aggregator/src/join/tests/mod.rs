//! Tests of the join's public interface: events in, traces out.

mod bounds;
mod clones;
mod commit;
mod local;
mod page_origin;
pub(crate) mod property;
mod snapshot;
pub(crate) mod world;
