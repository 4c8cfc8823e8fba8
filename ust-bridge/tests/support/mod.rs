//! Helpers of the tests.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::print_stderr, reason = "a skipped test prints the reason")]

#[path = "../../../lttng-live/tests/support/babeltrace.rs"]
pub(crate) mod babeltrace;
pub(crate) mod lab;
#[path = "../../../lttng-live/tests/support/programs.rs"]
pub(crate) mod programs;
#[path = "../../../lttng-live/tests/support/text.rs"]
pub(crate) mod text;
