//! Shared support of the exporter tests.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod certificates;
pub(crate) mod collector;
pub(crate) mod fake;
pub(crate) mod grpc_server;
pub(crate) mod server;
pub(crate) mod spans;

/// Prints why a test is skipped.
#[allow(clippy::print_stdout, reason = "whoever runs the tests looks for it there")]
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
}
