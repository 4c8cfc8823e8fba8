//! The join as its users see it: events in, traces out.

mod bounds;
mod commit;
mod local;
pub(crate) mod make;
mod property;
mod world;
