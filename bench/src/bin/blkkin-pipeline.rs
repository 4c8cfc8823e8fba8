//! Runs the pipeline over fixed input: for valgrind, which counts the instructions of one stage.
//!
//! `blkkin-pipeline CALLS STAGE` sends CALLS calls through the stages up to STAGE and prints the sizes as JSON.
//! `cargo xtask bench callgrind` and `cargo xtask test` call it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is what it is for")]

use std::process::ExitCode;

use blkkin_bench::pipeline::{self, Outside, Stage};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let asked = match words.as_slice() {
        [calls, stage] => calls.parse::<u64>().ok().zip(Stage::by_name(stage)),
        _ => None,
    };
    let Some((calls, last)) = asked else {
        eprintln!("usage: blkkin-pipeline CALLS {}", Stage::ALL.map(Stage::name).join("|"));
        return ExitCode::FAILURE;
    };
    let sizes = pipeline::run(calls, last, &mut Outside);
    println!(
        r#"{{"events":{},"traces":{},"spans":{},"ring_bytes":{},"json_bytes":{}}}"#,
        sizes.events, sizes.traces, sizes.spans, sizes.ring_bytes, sizes.json_bytes
    );
    ExitCode::SUCCESS
}
