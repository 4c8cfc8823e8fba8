//! Helpers of the tests; those of `ust-bridge` use some of them, too.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::print_stderr, reason = "a skipped test prints the reason")]

pub(crate) mod babeltrace;
pub(crate) mod programs;
pub(crate) mod synthetic;
pub(crate) mod text;
