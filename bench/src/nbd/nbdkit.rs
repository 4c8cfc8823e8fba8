//! `nbdkit`: blkkin-nbd without tracing, by threads and by rings, compared with nbdkit's file
//! plugin.
//!
//! The load is fio's nbd engine, over one connection. *Rejected*: the client of `nbd`, which always
//! has many requests in flight for one read; that favours a server that reads many at a time.
//! Processes of one program differ for their whole life, so each measurement starts a new one. The
//! CPUs are those of `nbd`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::server::{RequestStats, Server};
use super::{processor, program, rate, row, with_file};
use crate::frame::{BenchReport, Figure, RoundPolicy, Rounds, Table};
use crate::{Setting, affinity, fio, process};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 15, max_rounds: 15, time_limit: Duration::from_secs(300) };
const LENGTH: Duration = Duration::from_secs(2);
const DEPTH: u32 = 16;

const SERVERS: [&str; 3] = ["nbdkit", "blkkin-nbd by threads", "blkkin-nbd by rings"];

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let version = process::run(Command::new("nbdkit").arg("--version"))?;
    let program = program()?;
    let policy = POLICY.quick(setting.extent.is_quick());
    let measured =
        with_file(|file| policy.run(&[0, 1, 2], |index| measure(&program, index, file), |_| false))?;
    Ok(build_report(&version, &measured))
}

fn measure(program: &Path, index: usize, file: &Path) -> Result<RequestStats> {
    let server = Server::run(|socket| {
        let mut command = Command::new(if index == 0 { Path::new("nbdkit") } else { program });
        match index {
            0 => command.args(["--foreground", "--unix"]).arg(socket).arg("file").arg(file),
            _ => command.arg(file).arg("--unix").arg(socket).env("BLKKIN_UST", "0").stderr(Stdio::null()),
        };
        command.args(if index == 2 { &["--rings", "1"][..] } else { &[] });
        command
    })?;
    let before = server.processor_time()?;
    let output = process::run(fio::nbd(&server.socket(), DEPTH, LENGTH).arg("--output-format=json"))?;
    let time = server.processor_time()?.saturating_sub(before);
    server.stop()?;
    parse(&output, time).context("fio's output cannot be understood")
}

/// Parses fio's JSON, which may follow other lines.
fn parse(output: &str, server: Duration) -> Option<RequestStats> {
    let json: Value = serde_json::from_str(&output[output.find('{')?..]).ok()?;
    let read = &json["jobs"][0]["read"];
    let wall = Duration::from_millis(read["runtime"].as_u64()?);
    Some(RequestStats { requests: read["total_ios"].as_u64()?, wall, server })
}

fn build_report(version: &str, measured: &[Vec<RequestStats>]) -> BenchReport {
    let columns = ["server", "requests/s", "µs of the server a request", "its CPU, busy"];
    let mut table = Table::new("", &columns);
    let mut figures = Vec::new();
    for (index, name) in SERVERS.into_iter().enumerate() {
        let each = measured[index].chunks(1);
        table.row(row(name.to_owned(), each, None).into_iter().take(columns.len()));
        let figure = |what, value: fn(&RequestStats) -> f64| {
            let [own, nbdkit] = [index, 0].map(|index| measured[index].iter().map(value).collect::<Rounds>());
            Figure::of(format!("{name}: {what}"), &Rounds::ratios(&own, &nbdkit), "× nbdkit's")
        };
        if index > 0 {
            figures.push(figure("requests a second", rate));
            figures.push(figure("processor time of the server a request", processor));
        }
    }
    let how = format!(
        "Random reads of 4 KiB by fio's nbd engine, depth {DEPTH}, over one Unix socket, the file in memory; {version}, `file` plugin, with its \
         defaults. The server on CPU {}, fio on {:?}. Medians of {} rounds of {} s with a new process each, in turns.",
        affinity::load_cpu(),
        affinity::other_cpus(),
        measured[0].len(),
        LENGTH.as_secs(),
    );
    BenchReport { how, figures, tables: vec![table], ..BenchReport::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_fio_are_parsed_behind_other_lines() {
        let json = r#"{"jobs":[{"read":{"runtime":2000,"total_ios":80000}}]}"#;
        let stats = parse(&format!("note: both iodepth >= 1\n{json}"), Duration::from_secs(1)).unwrap();
        assert_eq!((rate(&stats), processor(&stats)), (40_000.0, 12.5));
        assert!(parse("no output", Duration::ZERO).is_none());
    }
}
