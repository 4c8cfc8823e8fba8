//! Sampling at the source by a planted clock.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

use std::process::Command;

/// What came of one second.
struct Second {
    roots: f64,
    kept: f64,
    weight: f64,
}

/// Runs the sampler over seconds with so many roots each.
fn run(rate: u32, loads: &[u32]) -> Vec<Second> {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("sampling");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sampling.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    assert!(compiler.status().unwrap().success());
    let words = loads.iter().map(u32::to_string);
    let output = Command::new(&program).arg(rate.to_string()).args(words).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    println!("rate {rate}:\n{said}");
    let numbers = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<f64>>();
    let seconds = said.lines().map(numbers);
    seconds.map(|n| Second { roots: n[0], kept: n[1], weight: n[2] }).collect()
}

#[test]
fn a_steady_load_is_kept_at_the_rate() {
    let seconds = run(100, &[50_000; 30]);
    // The first one has nothing to go by: rate * (2 + log2(load / rate)).
    assert!(seconds[0].kept <= 100.0 * (2.0 + 500_f64.log2()), "{}", seconds[0].kept);
    for second in &seconds[1..] {
        // Six standard deviations of a count of 100.
        assert!((second.kept - 100.0).abs() <= 60.0, "{}", second.kept);
    }
    let (roots, weight) = seconds.iter().fold((0.0, 0.0), |(r, w), s| (r + s.roots, w + s.weight));
    assert!((weight / roots - 1.0).abs() < 0.1, "weighed {weight} of {roots}");
}

#[test]
fn less_than_the_rate_is_kept_whole() {
    for second in run(100, &[100, 99, 1, 100]) {
        assert_eq!((second.kept, second.weight), (second.roots, second.roots));
    }
}

#[test]
fn it_follows_a_load_that_comes_and_goes() {
    let seconds = run(1000, &[500, 1_000_000, 1_000_000, 500, 500]);
    assert_eq!(seconds[0].kept, 500.0);
    assert!(seconds[1].kept <= 1000.0 * (2.0 + 1000_f64.log2()));
    assert!((seconds[2].kept - 1000.0).abs() <= 200.0);
    // The first second after is still thinned out by what was before, the next is whole again.
    assert!(seconds[3].kept <= 20.0);
    assert_eq!(seconds[4].kept, 500.0);
}
