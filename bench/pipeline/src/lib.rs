//! Stages of blkkin without a kernel and without a cluster, over synthetic ring entries.
//!
//! [`records`] makes the entries, [`stages`] has a function for each stage, [`aggregate`] runs the
//! aggregator's first stage, and [`links`] the one that links virtual machines' requests. `blkkin-bench` compares their times with goals, and
//! `blkkin-pipeline` runs them under valgrind, which counts instructions.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod aggregate;
pub mod links;
pub mod records;
pub mod stages;
