//! C and C++ programs that use every call, under LTTng: what they say is what babeltrace2 reads, field by field.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use support::{Lttng, compile, library, succeed};

/// Runs `program`, which prints what is to be found, and compares.
#[test]
fn every_call_is_an_event_with_its_fields() {
    let lttng = match Lttng::start() {
        Ok(lttng) => lttng,
        Err(why) => return println!("skipped: {why}"),
    };
    let build = tempfile::tempdir().unwrap();
    let library = library(build.path());
    let programs = [
        ("spans.c", "spans", &["-std=c11"][..]),
        ("blkin.c", "blkin", &["-std=gnu11"]),
        ("blkin.c", "blkin-first", &["-std=gnu11", "-DBLKIN_FIRST_GENERATION"]),
        ("ztracer.cpp", "ztracer", &["-std=c++11"]),
        ("ztracer.cpp", "ztracer-first", &["-std=c++17", "-DBLKIN_FIRST_GENERATION"]),
    ];
    for (source, name, flags) in programs {
        let program = lttng.install(&compile(build.path(), &library, source, name, flags));
        lttng.record(name, &["blkkin:*", "zipkin:*"], &[]);
        let said = succeed(lttng.command(program).output().unwrap());
        let told: Vec<String> = lttng.finish(name).iter().map(support::Event::line).collect();
        let expected: Vec<&str> = said.lines().collect();
        assert!(expected.len() >= 17, "{name} says too little");
        assert_eq!(told, expected, "{name}");
        println!("{name}: {} events as said", told.len());
    }
}
