//! An NBD server of one file: the worked example of an instrumented storage daemon.
//!
//! *In*: clients at a socket, and a regular file or block device. *Out*: what they asked for; and, where somebody traces,
//! a span for each request, under which stand the system calls that it caused.
//!
//! In the order in which a request passes them: [`protocol`] (bytes to requests, no I/O) → `pool` or `ring` (who does
//! them when) → [`export`] (the file) → [`protocol::reply`]; [`op`] says what is going on to whoever traces.
//! [`peer`] finds the name of a connection that its other end finds as well; [`server`] puts the parts together.
//!
//! *Invariant*: no request is begun before it was compared with the export's size, no memory is taken for a length that
//! was not; whatever a client sends, the worst is that its own connection ends.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod protocol;

pub mod export;
pub mod op;
pub mod peer;
pub mod socket;

mod allowance;
mod outbox;

mod pool;
mod ring;

pub mod args;
pub mod server;
