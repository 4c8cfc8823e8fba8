//! C and C++ programs that call every function, under LTTng: babeltrace2 reads the events that they
//! emitted, field by field.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use support::{Event, Lttng, compile, library, succeed};

/// Each program prints the events that it emits, in the form of babeltrace2.
#[test]
fn every_call_emits_an_event_with_its_fields() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
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
        let stdout = succeed(lttng.command(program).output().unwrap());
        let recorded: Vec<String> = lttng.finish(name).iter().map(Event::line).collect();
        let expected: Vec<&str> = stdout.lines().collect();
        assert!(expected.len() >= 17, "{name} emitted too few events");
        assert_eq!(recorded, expected, "{name}");
        println!("{name}: {} events as emitted", recorded.len());
    }
}

#[test]
fn a_blkin_trace_that_sampling_drops_emits_nothing() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let build = tempfile::tempdir().unwrap();
    let library = library(build.path());
    let program =
        lttng.install(&compile(build.path(), &library, "blkin_sampled.c", "blkin_sampled", &["-std=gnu11"]));
    lttng.record("dropped", &["zipkin:*"], &["--subbuf-size=1M"]);
    let stdout = succeed(lttng.command(program).env("BLKKIN_UST_ROOTS", "50").output().unwrap());
    let (began, kept) = stdout.trim().split_once(' ').unwrap();
    let (began, kept): (f64, usize) = (began.parse().unwrap(), kept.parse().unwrap());
    let events = lttng.finish("dropped");
    let count = |moment: &str| {
        let same =
            events.iter().filter(|event| event.name == "zipkin:timestamp" && event.field("event") == moment);
        same.count()
    };
    assert_eq!((count("root"), count("child")), (kept, kept));
    // Traces that were kept before the first one was dropped have no annotation.
    let ratios: Vec<u64> = events
        .iter()
        .filter(|event| event.name == "zipkin:keyval_integer")
        .map(|event| {
            assert_eq!(event.field("key"), "sampled_per_million");
            event.number("val")
        })
        .collect();
    let weights = ratios.iter().map(|&ratio| 1e6 / ratio as f64);
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * (w - 1.0)));
    let estimate = sum + (kept - ratios.len()) as f64;
    println!("began {began}, kept {kept}, estimated {estimate:.0} ± {:.0}", squares.sqrt());
    assert!(kept < 2_000 && !ratios.is_empty());
    assert!((estimate - began).abs() <= 6.0 * squares.sqrt());
}
