//! Sampling at the source with a simulated clock.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it saw"
)]

use std::process::Command;

/// Outcome of one second.
struct Second {
    roots: f64,
    kept: f64,
    weight: f64,
}

/// Runs the sampler over seconds with these numbers of roots.
fn run(rate: u32, loads: &[u32]) -> Vec<Second> {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("sampling");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sampling.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    assert!(compiler.status().unwrap().success());
    let args = loads.iter().map(u32::to_string);
    let output = Command::new(&program).arg(rate.to_string()).args(args).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    println!("rate {rate}:\n{stdout}");
    let numbers = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<f64>>();
    let seconds = stdout.lines().map(numbers);
    seconds.map(|n| Second { roots: n[0], kept: n[1], weight: n[2] }).collect()
}

#[test]
fn a_steady_load_is_kept_at_the_rate() {
    let seconds = run(100, &[50_000; 30]);
    // Bound of the first second, which has no previous one: rate * (2 + log2(load / rate)).
    assert!(seconds[0].kept <= 100.0 * (2.0 + 500_f64.log2()), "{}", seconds[0].kept);
    for second in &seconds[1..] {
        // Six standard deviations of a count of 100.
        assert!((second.kept - 100.0).abs() <= 60.0, "{}", second.kept);
    }
    let (roots, weight) = seconds.iter().fold((0.0, 0.0), |(r, w), s| (r + s.roots, w + s.weight));
    assert!((weight / roots - 1.0).abs() < 0.1, "estimated {weight} of {roots}");
}

#[test]
fn a_load_below_the_rate_is_kept_completely() {
    for second in run(100, &[100, 99, 1, 100]) {
        assert_eq!((second.kept, second.weight), (second.roots, second.roots));
    }
}

#[test]
fn the_ratio_follows_the_load() {
    let seconds = run(1000, &[500, 1_000_000, 1_000_000, 500, 500]);
    assert_eq!(seconds[0].kept, 500.0);
    assert!(seconds[1].kept <= 1000.0 * (2.0 + 1000_f64.log2()));
    assert!((seconds[2].kept - 1000.0).abs() <= 200.0);
    // The first second after the load still has its ratio. The next one keeps all roots.
    assert!(seconds[3].kept <= 20.0);
    assert_eq!(seconds[4].kept, 500.0);
}
