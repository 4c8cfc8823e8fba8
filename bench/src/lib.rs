//! What more than one of the programs that measure blkkin needs: made-up ring entries, and the stages that turn them
//! into spans.
//!
//! [`records`] makes the entries, [`pipeline`] has a function for each stage, [`aggregate`] is the aggregator's. `blkkin-bench` times them against goals,
//! `blkkin-pipeline` runs them under valgrind, which counts their instructions, and `benches/pipeline.rs` gives them
//! to criterion.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod aggregate;
pub mod pipeline;
pub mod records;
