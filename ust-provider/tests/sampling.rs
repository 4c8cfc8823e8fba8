//! Sampling at the source with a simulated clock.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

use std::process::Command;

/// Outcome of one second.
struct Second {
    roots: f64,
    kept: f64,
    /// Sum of 1,000,000 / ratio over the kept roots.
    weight: f64,
    /// Sum over the kept roots with an even number.
    even: f64,
}

/// Runs the sampler over seconds with these numbers of roots, which the threads take in turns.
fn run(rate: u32, threads: u32, loads: &[u32]) -> Vec<Second> {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("sampling");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sampling.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    assert!(compiler.status().unwrap().success());
    let args = [rate, threads].into_iter().chain(loads.iter().copied());
    let output = Command::new(&program).args(args.map(|arg| arg.to_string())).output().unwrap();
    assert!(output.status.success(), "a ratio that is no divisor of a million");
    let stdout = String::from_utf8(output.stdout).unwrap();
    println!("rate {rate}, {threads} threads:\n{stdout}");
    let numbers = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<f64>>();
    let seconds = stdout.lines().map(numbers);
    seconds.map(|n| Second { roots: n[0], kept: n[1], weight: n[2], even: n[3] }).collect()
}

/// Sums of roots, weights and weights of the even roots.
fn sums(seconds: &[Second]) -> (f64, f64, f64) {
    seconds.iter().fold((0.0, 0.0, 0.0), |(r, w, e), s| (r + s.roots, w + s.weight, e + s.even))
}

#[test]
fn a_steady_load_is_kept_at_the_rate_and_its_weights_count_it() {
    let seconds = run(100, 4, &[50_000; 30]);
    // Bound of the first second, which has no previous one: rate * (2 + log2(load / rate)).
    assert!(seconds[0].kept <= 100.0 * (2.0 + 500_f64.log2()), "{}", seconds[0].kept);
    for second in &seconds[1..] {
        // The interval is the next divisor of a million, and each thread may keep one root more.
        assert!((46.0..=104.0).contains(&second.kept), "{}", second.kept);
    }
    let (roots, weight, _) = sums(&seconds);
    assert!((weight / roots - 1.0).abs() < 0.01, "estimated {weight} of {roots}");
}

#[test]
fn a_load_below_the_rate_is_kept_completely() {
    for second in run(100, 2, &[100, 99, 1, 100]) {
        assert_eq!((second.kept, second.weight), (second.roots, second.roots));
    }
}

#[test]
fn the_ratio_follows_the_load() {
    let seconds = run(1000, 2, &[500, 1_000_000, 1_000_000, 500, 500, 500]);
    assert_eq!(seconds[0].kept, 500.0);
    assert!(seconds[1].kept <= 1000.0 * (2.0 + 1000_f64.log2()));
    assert!((seconds[2].kept - 1000.0).abs() <= 2.0, "{}", seconds[2].kept);
    // The first second after the load still has its ratio. From its few kept roots the next one
    // computes an interval of at most 2, and the third keeps all roots.
    assert!(seconds[3].kept <= 2.0, "{}", seconds[3].kept);
    assert!(seconds[4].kept >= 250.0, "{}", seconds[4].kept);
    assert_eq!((seconds[5].kept, seconds[5].weight), (500.0, 500.0));
}

/// A group of a thread that went idle ends with its second: up to 15 of the thread's next roots have
/// the ratio of a load that is over.
#[test]
fn roots_after_an_idle_time_are_kept() {
    let mut loads = vec![1_000_000, 1_000_000];
    // 5 roots per thread and second, 1,000 s later.
    loads.extend([0; 1_000]);
    loads.extend([40; 5]);
    let seconds = run(1000, 8, &loads);
    let last = seconds.last_chunk::<2>().unwrap();
    for second in last {
        assert_eq!((second.kept, second.weight), (40.0, 40.0));
    }
}

/// Each group is cut by the end of its second: 187 roots of a thread, of an interval of 320.
#[test]
fn groups_that_are_not_full_count_without_bias() {
    let seconds = run(10, 16, &[3_000; 1_000]);
    let (roots, weight, even) = sums(&seconds);
    // At most the deviation of independent draws, of 320 at 3,000,000 roots: 1 %. Six of them.
    assert!((weight / roots - 1.0).abs() < 0.06, "estimated {weight} of {roots}");
    assert!((even / weight - 0.5).abs() < 0.06, "even roots {even} of {weight}");
}

/// A load whose period divides the interval: every second root is of the same kind.
#[test]
fn a_load_with_a_period_is_counted_without_bias() {
    let seconds = run(1000, 1, &[100_000; 60]);
    let (roots, weight, even) = sums(&seconds);
    assert!((weight / roots - 1.0).abs() < 0.001, "estimated {weight} of {roots}");
    // Of 60,000 kept roots half are even, with a deviation of 0.2 %. Six of them.
    assert!((even / weight - 0.5).abs() < 0.012, "even roots {even} of {weight}");
}
