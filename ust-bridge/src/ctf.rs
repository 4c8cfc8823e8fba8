//! The Common Trace Format, version 1.8 (specification: diamon.org/ctf/v1.8.3): metadata in, events out.
//!
//! [`metadata`] reads the description (TSDL) that a trace carries; each packet and event is then decoded by a plan
//! ([`plan`]) compiled from it: no field, size or byte order is known beforehand. [`packet`] runs the plans.
//!
//! Invariant: no byte of a trace makes this panic, recurse deeper than [`types::DEPTH_MAX`], or allocate more than a
//! packet's size times a constant; an event on the hot path allocates nothing (its items are reused).
//!
//! Rejected: binding libbabeltrace2, which is the oracle of the tests, and takes 860 to 930 ns an event through its API.

pub mod cursor;
pub mod lexer;
pub mod metadata;
pub mod packet;
pub mod parser;
pub mod plan;
mod resolve;
pub mod types;
mod unpack;
