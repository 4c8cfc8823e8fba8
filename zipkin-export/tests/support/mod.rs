//! Shared support of the exporter tests.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod certificates;
#[path = "../../../bus/tests/support/child.rs"]
pub(crate) mod child;
pub(crate) mod collector;
pub(crate) mod fake;
pub(crate) mod grpc_server;
pub(crate) mod server;
pub(crate) mod spans;

/// Returns what the test needs, or prints why it is skipped.
#[allow(clippy::print_stdout, reason = "whoever runs the tests looks for it there")]
pub(crate) fn or_skip<T>(needed: Result<T, String>) -> Option<T> {
    needed.inspect_err(|why| println!("skipped: {why}")).ok()
}
