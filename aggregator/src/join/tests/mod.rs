//! Tests of the join's public interface: events in, traces out.

mod bounds;
mod clones;
mod commit;
mod local;
pub(crate) mod property;
mod snapshot;
pub(crate) mod world;
