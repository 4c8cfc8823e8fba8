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
        ("batch.c", "batch", &["-std=c11"]),
        ("blkin.c", "blkin", &["-std=gnu11"]),
        ("blkin.c", "blkin-first", &["-std=gnu11", "-DBLKIN_FIRST_GENERATION"]),
        ("ztracer.cpp", "ztracer", &["-std=c++11"]),
        ("ztracer.cpp", "ztracer-first", &["-std=c++17", "-DBLKIN_FIRST_GENERATION"]),
    ];
    for (source, name, flags) in programs {
        let program = lttng.install(&compile(build.path(), &library, source, name, flags));
        lttng.record(name, &["blkkin:*", "zipkin:*"], &[]);
        let said = succeed(lttng.command(program).output().unwrap());
        let told = support::batch::lines(&lttng.finish(name));
        let expected: Vec<&str> = said.lines().collect();
        assert!(expected.len() >= 17, "{name} says too little");
        assert_eq!(told, expected, "{name}");
        println!("{name}: {} events as said", told.len());
    }
}

#[test]
fn a_trace_of_blkins_that_sampling_drops_says_nothing() {
    let lttng = match Lttng::start() {
        Ok(lttng) => lttng,
        Err(why) => return println!("skipped: {why}"),
    };
    let build = tempfile::tempdir().unwrap();
    let library = library(build.path());
    let program =
        lttng.install(&compile(build.path(), &library, "blkin_sampled.c", "blkin_sampled", &["-std=gnu11"]));
    lttng.record("dropped", &["zipkin:*"], &["--subbuf-size=1M"]);
    let said = succeed(lttng.command(program).env("BLKKIN_UST_ROOTS", "50").output().unwrap());
    let (began, kept) = said.trim().split_once(' ').unwrap();
    let (began, kept): (f64, usize) = (began.parse().unwrap(), kept.parse().unwrap());
    let events = lttng.finish("dropped");
    let moments = |what: &str| {
        let same =
            events.iter().filter(|event| event.name == "zipkin:timestamp" && event.field("event") == what);
        same.count()
    };
    assert_eq!((moments("root"), moments("child")), (kept, kept));
    // Those that were kept before anything was dropped have nothing to tell.
    let told: Vec<u64> = events
        .iter()
        .filter(|event| event.name == "zipkin:keyval_integer")
        .map(|event| {
            assert_eq!(event.field("key"), "kept_per_million");
            event.number("val")
        })
        .collect();
    let weights = told.iter().map(|&part| 1e6 / part as f64);
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * (w - 1.0)));
    let weighed = sum + (kept - told.len()) as f64;
    println!("began {began}, kept {kept}, weighed {weighed:.0} ± {:.0}", squares.sqrt());
    assert!(kept < 2_000 && !told.is_empty());
    assert!((weighed - began).abs() <= 6.0 * squares.sqrt());
}
