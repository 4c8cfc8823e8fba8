//! `memory`: memory per request in flight, and the curves over open requests and over their rate.
//!
//! *Open requests*: the join receives bios and requests of system calls that have not ended, 1×,
//! 10×, 100× and more of them, and the allocator reports the bytes in use. *Rate*: `blkkin run`
//! with calls at 1×, 10× and 100× a rate; the kernel reports the maximum resident memory. *In the
//! kernel*: maps have a fixed size from the start.

use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::loaded_maps;
use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_bench::pipeline::{batch, stage_decode_translate};
use blkkin_bench::records::{Entries, STEP};
use blkkin_wire::clock::MonotonicNs;

use crate::frame::number::{count, number};
use crate::frame::outcome::Series;
use crate::frame::{BenchReport, Figure, Goal, Plot, RoundPolicy, Rounds, Shape, Table};
use crate::loss::{self, Flood};
use crate::{Setting, harness};

/// Numbers of open requests; the last exceeds the join's limit, where memory must not grow.
const OPEN: [u64; 4] = [600, 6_000, 60_000, 600_000];
/// Rates in events per second.
const RATES: &[u64] = &[5_000, 50_000, 500_000];
const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 0, min_rounds: 5, max_rounds: 5, time_limit: Duration::from_secs(240) };
const SECONDS: u64 = 4;
/// Goal for blkkin's own memory in MiB.
const RESIDENT_MAX: f64 = 64.0;
const MIB: f64 = (1 << 20) as f64;

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let open: Vec<(u64, u64)> = OPEN.into_iter().map(|requests| (requests, join_memory(requests))).collect();
    let quick = setting.extent.is_quick();
    let seconds = if quick { 1 } else { SECONDS };
    let floods = POLICY.quick(quick).run(RATES, |rate| loss::flood(setting, rate, seconds), |_| true)?;
    let each = |of: fn(&Flood) -> f64| floods.iter().map(|runs| runs.iter().map(of).collect()).collect();
    let resident = ResidentByRate { most: each(Flood::resident), last: each(Flood::resident_last) };
    Ok(build_report(&open, &resident, in_kernel()?))
}

/// Resident memory in MiB, for each of [`RATES`].
struct ResidentByRate {
    most: Vec<Rounds>,
    last: Vec<Rounds>,
}

/// Returns the bytes in use with this number of requests whose system calls are open.
fn join_memory(requests: u64) -> u64 {
    let before = in_use();
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut sequence = 0;
    let mut apply = |entries: &Entries, until: u64, joiner: &mut Joiner| {
        let events = stage_decode_translate(entries);
        joiner.apply(batch(sequence, events, MonotonicNs(until * STEP)), &mut |_: &Trace| {});
        sequence += 1;
    };
    apply(&Entries::names(), 1, &mut joiner);
    let mut entries = Entries::default();
    for n in 1..=requests {
        entries.add_open(n);
        if entries.len() >= blkkin_bench::pipeline::BATCH || n == requests {
            apply(&entries, n + 1, &mut joiner);
            entries = Entries::default();
        }
    }
    // The buffer of the last batch does not belong to the join.
    drop(entries);
    in_use().saturating_sub(before)
}

/// Returns the bytes that the allocator has given out.
fn in_use() -> u64 {
    // SAFETY: no memory is passed; glibc has it since 2.33.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}

/// Returns the bytes of all maps of a tracer.
fn in_kernel() -> Result<u64> {
    let ids = || loaded_maps().filter_map(Result::ok).map(|map| map.id()).collect::<Vec<_>>();
    let before = ids();
    let tracer = harness::load_tracer()?;
    let mut bytes = 0;
    for map in loaded_maps().filter_map(Result::ok).filter(|map| !before.contains(&map.id())) {
        let fd = map.fd().context("a map of ours cannot be opened")?;
        bytes += locked(&fd)?;
    }
    drop(tracer);
    Ok(bytes)
}

/// Parses `memlock: 4096` in a descriptor's fdinfo.
fn locked(map: &impl std::os::fd::AsFd) -> Result<u64> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd()))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    bytes.and_then(|bytes| bytes.trim().parse().ok()).context("the map's fdinfo has no memlock")
}

fn build_report(open: &[(u64, u64)], resident: &ResidentByRate, kernel: u64) -> BenchReport {
    let mut by_open = Table::new("The join, by open requests", &["open", "in use, KiB", "bytes a request"]);
    for (requests, bytes) in open {
        let each = *bytes as f64 / *requests as f64;
        by_open.row([count(*requests), number(*bytes as f64 / 1024.0), number(each)]);
    }
    let mut by_rate = Table::new("blkkin run, by rate", &["events/s", "resident at most, MiB", "at the end"]);
    let mut figures = vec![per_request(open)];
    for ((rate, most), last) in RATES.iter().zip(&resident.most).zip(&resident.last) {
        let shown = |rounds: &Rounds| crate::frame::number::with_spread(rounds.median(), rounds.spread());
        by_rate.row([count(*rate), shown(most), shown(last)]);
        let name = format!("resident at most, at {} events/s", count(*rate));
        figures.push(Figure::of(name, most, "MiB").goal(Goal::AtMost(RESIDENT_MAX)));
    }
    figures.push(
        Figure::new("maps in the kernel", kernel as f64 / MIB, 0.0, "MiB")
            .note("rings of 8 MiB a CPU are most of it; the same whatever comes"),
    );
    let how = format!(
        "Open requests: bios and requests of calls that have not ended, passed to the join alone; it keeps at most {} \
         traces open. Rate: `blkkin run` around `lseek` calls, {} runs of {SECONDS} s at each rate in turns.",
        count(JoinConfig::default().open_max as u64),
        POLICY.max_rounds
    );
    BenchReport {
        how,
        figures,
        tables: vec![by_open, by_rate],
        plots: plots(open, resident),
        ..BenchReport::default()
    }
}

/// Computed between 6,000 and 60,000, which excludes the constant part.
fn per_request(open: &[(u64, u64)]) -> Figure {
    let [(few, small), (many, large)] = [open[1], open[2]];
    let each = large.saturating_sub(small) as f64 / (many - few) as f64;
    Figure::new("a request in flight, in the join", each, 0.0, "bytes")
        .note("with its bio and its share of the tables, whose size doubles: between 6,000 and 60,000 open")
}

fn plots(open: &[(u64, u64)], resident: &ResidentByRate) -> Vec<Plot> {
    let line = |name: &str, points| Series { name: name.to_owned(), points };
    let by_open = open.iter().map(|(requests, bytes)| (*requests as f64, *bytes as f64 / MIB)).collect();
    let by_rate = |rounds: &[Rounds]| {
        RATES.iter().zip(rounds).map(|(rate, rounds)| (*rate as f64, rounds.median())).collect()
    };
    let rates = vec![line("at most", by_rate(&resident.most)), line("at the end", by_rate(&resident.last))];
    let plot = |name: &str, title: &str, x: &str, series| Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        x: x.to_owned(),
        y: "MiB".to_owned(),
        shape: Shape::LogLines,
        series,
    };
    vec![
        plot(
            "memory-open",
            "Memory of the join by open requests",
            "open requests",
            vec![line("in use", by_open)],
        ),
        plot("memory-rate", "Resident memory of blkkin by rate", "events a second", rates),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_open_requests() {
        let [few, many] = [600, 6_000].map(join_memory);
        assert!(few > 0 && many > 4 * few, "{few} {many}");
    }
}
