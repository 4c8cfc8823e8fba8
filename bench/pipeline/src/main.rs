//! Runs the pipeline over fixed input under valgrind, which counts the instructions of one stage.
//!
//! `blkkin-pipeline CALLS STAGE` sends CALLS calls through the stages up to STAGE and prints the
//! sizes as JSON. `cargo xtask bench callgrind` and `cargo xtask test` run it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is what it is for")]

use std::process::ExitCode;

use blkkin_pipeline::stages::{self, NoMeter, Stage};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match arguments.as_slice() {
        [calls, stage] => calls.parse::<u64>().ok().zip(Stage::by_name(stage)),
        _ => None,
    };
    let Some((calls, last)) = parsed else {
        eprintln!("usage: blkkin-pipeline CALLS {}", Stage::ALL.map(Stage::name).join("|"));
        return ExitCode::FAILURE;
    };
    let sizes = stages::run(calls, last, &mut NoMeter);
    println!(
        r#"{{"events":{},"traces":{},"spans":{},"ring_bytes":{},"json_bytes":{}}}"#,
        sizes.events, sizes.traces, sizes.spans, sizes.ring_bytes, sizes.json_bytes
    );
    ExitCode::SUCCESS
}
