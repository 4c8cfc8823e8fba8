//! The join as its users see it: events in, traces out.

mod bounds;
mod commit;
mod local;
pub(crate) mod make;
pub(crate) mod property;
mod saved;
pub(crate) mod world;
