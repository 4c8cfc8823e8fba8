//! Shared parts of the programs that measure blkkin: synthetic ring entries, and the stages that
//! turn them into spans.
//!
//! [`records`] makes the entries, [`pipeline`] has a function for each stage, and [`aggregate`]
//! runs the aggregator's first stage. `blkkin-bench` compares their times with goals, and
//! `blkkin-pipeline` runs them under valgrind, which counts instructions.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod aggregate;
pub mod pipeline;
pub mod records;
