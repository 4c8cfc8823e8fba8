//! The contract between blkkin's services, and with whoever reads its topics.
//!
//! *What it is*: the vocabulary in flow order: [`ids`] and [`clock`] name things and times, [`event`] says what
//! one layer saw ([`event::LayerEvent`], made by `tracer` and `ust-bridge`), [`batch`] carries events with
//! their origin and losses, [`operation`] is what a daemon says of itself, [`process`] what a program says of its process, [`attributes`] what a thread says of its work, [`killed`] what a tracer that was killed has lost, [`span`] is what leaves for Zipkin, [`piece`] carries
//! spans by trace, [`meeting`] ties those of two nodes. [`calls`] is the table of system calls that
//! event and report refer to. What lies in topics is [`v1`]'s; `blkkin.proto` beside this crate is the
//! same for everybody else, and `examples/` has readers of it in Python and Java.
//!
//! *Invariant*: no type here knows how an event was captured (that is `probe-abi`'s and `tracer`'s) nor how a
//! span is shown (`zipkin-export`'s); every id and time is a type of its own, so that no function takes two
//! bare `u64`s that could be swapped.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod attributes;
pub mod batch;
pub mod calls;
pub mod clock;
pub mod event;
pub mod ids;
pub mod killed;
pub mod meeting;
pub mod op;
pub mod operation;
pub mod partition;
pub mod piece;
pub mod process;
pub mod span;
pub mod unended;
pub mod v1;
