//! NBD server for one file: the worked example of an instrumented storage daemon.
//!
//! *In*: clients at a socket, and a regular file or block device. *Out*: replies; and, while the
//! daemon is traced, one span for each request, which is the parent of the request's system calls.
//!
//! A request passes the modules in this order: [`protocol`] decodes it without I/O, `pool` or
//! `ring` schedules it, [`export`] executes it on the file, and [`protocol::reply`] encodes its
//! reply. [`request_span`] emits its span. [`connection_name`] computes a name of the connection
//! that the client's side can compute too. [`server`] composes these parts.
//!
//! *Invariant*: no request is executed before its range was compared with the export's size, and no
//! memory is allocated for a length that was not compared with a limit. The worst effect of any
//! input is that the client's own connection ends.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod protocol;

pub mod connection_name;
pub mod export;
pub mod request_span;
pub mod socket;

mod accepted;
mod client;
mod clients;
mod memory;
mod send_queue;

mod pool;
mod ring;

pub mod args;
pub mod server;
