//! `docs/cost.md`: what tracing costs, on one page.
//!
//! *In*: the generated pages of `call`, `iops`, `peers`, `agent`, `memory` and `start`, so that it has their figures also where
//! their JSON is gone. *Out*: the page: a line for each question of a user, and a chart next to other tools.
//! *Invariant*: each figure is of a page; one that is missing is an error, not a gap.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::number::whole;

/// Benchmarks of the page.
const SOURCES: [&str; 6] = ["call", "iops", "peers", "agent", "memory", "start"];

/// Text behind the table.
const EXPLANATION: &str = "\
A share of operations is against the same load untraced, in the same run, with every system call, bio and request recorded.
`±` is half of the interval that contains the true median in 19 cases of 20.
Where it is larger than the figure, the rounds were too few for a verdict, and the line has a note.

## Next to other tools

![fewer operations a second than untraced, by load and tool: less is better](performance/peers.svg)

Each tool records its usual work with its defaults, on the same load.
strace, perf trace and bpftrace's calls see system calls only; the others see block requests only.
[peers](performance/peers.md) has the tables behind the chart, and [matrix](performance/matrix.md) every engine, operation and depth of fio.

## What makes it cheaper

- `blkkin top` counts requests and records none: [its cost](top.md#what-it-costs).
- `--syscall`, `--device`, `--comm`, `--pid`, `--tid` and `--cgroup` filter in the kernel: what they exclude is not sent.
- `--path` excludes a file's calls in the kernel once its path is known.
- `--sample 1/N` records one operation in N, and `--budget` as many as a share of the CPUs allows: [sampling](sampling.md#head-sampling-in-the-kernel).
- `--errors-only`, `--slower-than` and `--detail 0` make reports and output smaller. They do not make recording cheaper.

## Where the figures come from

A benchmark writes JSON, and `cargo xtask bench docs` makes the pages of the benchmarks and this page from it.
[Cost in detail](performance.md) has the goals that were missed, and why.
";

/// Figures of a generated page.
struct Page {
    name: &'static str,
    /// First and second cell of each row of a table.
    rows: Vec<(String, String)>,
    /// Last line: machine, commit, date.
    conditions: String,
}

impl Page {
    fn read(pages: &Path, name: &'static str) -> Result<Page> {
        let path = pages.join(format!("{name}.md"));
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Page::parse(name, &text)
    }

    fn parse(name: &'static str, text: &str) -> Result<Page> {
        let cells = |line: &str| {
            let mut cells = line
                .strip_prefix("| ")?
                .trim_end_matches(" |")
                .split(" | ")
                .map(|cell| cell.trim().to_owned());
            Some((cells.next()?, cells.next()?))
        };
        let conditions = text.trim_end().lines().last().unwrap_or_default().trim_matches('*').to_owned();
        if !conditions.contains("; blkkin ") {
            bail!("the page of {name} names no commit in its last line: {conditions}");
        }
        Ok(Page { name, rows: text.lines().filter_map(cells).collect(), conditions })
    }

    /// Returns the second cell of the first row whose name begins so.
    fn value(&self, row: &str) -> Result<&str> {
        let found = self.rows.iter().find(|(name, _)| name.starts_with(row));
        found.map(|(_, value)| value.as_str()).with_context(|| format!("{} has no row `{row}`", self.name))
    }
}

/// Makes the page from those in `pages`.
pub(crate) fn page(pages: &Path) -> Result<String> {
    let read = |name: &&'static str| Ok((*name, Page::read(pages, name)?));
    of(&SOURCES.iter().map(read).collect::<Result<_>>()?)
}

fn named<'a>(pages: &'a BTreeMap<&str, Page>, name: &str) -> Result<&'a Page> {
    pages.get(name).with_context(|| format!("{name} has no page"))
}

fn of(pages: &BTreeMap<&str, Page>) -> Result<String> {
    let mut text = String::from(
        "# What does it cost me?\n\n<!-- Written by `cargo xtask bench docs`: do not edit. -->\n\n\
         | what | cost | measured by |\n|---|---|---|\n",
    );
    let mut row = |what: &str, cost: &str, source: &str| {
        text += &format!("| {what} | {cost} | [{source}](performance/{source}.md) |\n");
    };
    let value = |source: &str, name: &str| named(pages, source)?.value(name);
    for (what, kind) in [
        ("a system call that is traced", "(traced)"),
        ("a system call of a task that is not traced", "(task not traced)"),
        ("a system call on a file that `--path` excludes", "(excluded by its path)"),
    ] {
        row(what, &range(pages, kind)?, "call");
    }
    for (what, load) in [
        ("direct reads of a real disk, one at a time", "fio, psync, random read, 1 job, real disk"),
        (
            "direct reads of a real disk, io_uring, 32 at a time",
            "fio, io_uring, random read, 1 job, depth 32, real disk",
        ),
        ("direct reads of a disk in memory, 2 processes", "fio, psync, random read, 2 jobs, loop over tmpfs"),
        (
            "direct reads of a disk in memory, io_uring, 32 at a time",
            "fio, io_uring, random read, 1 job, depth 32, loop over tmpfs",
        ),
    ] {
        let rate = value("iops", &format!("{load} ("))?;
        let rate = rate.split(" ± ").next().unwrap_or(rate);
        row(&format!("{what}, {rate} a second"), &fewer(value("iops", &format!("{load}:"))?), "iops");
    }
    for (what, load) in [
        ("SQLite inserts, ext4 in memory", "SQLite inserts"),
        ("PostgreSQL with pgbench, ext4 in memory", "PostgreSQL, pgbench"),
    ] {
        row(what, &fewer(value("peers", load)?), "peers");
    }
    let agent = format!("{}, {}", value("agent", "the agent at 10,000")?, value("agent", "resident")?);
    row("an agent at 10,000 requests a second", &agent, "agent");
    row("memory of the kernel side", value("memory", "maps in the kernel")?, "memory");
    row("the start of `blkkin run`", value("start", "blkkin run: process start to CMD")?, "start");
    text.push('\n');
    text += EXPLANATION;
    text.push('\n');
    for source in SOURCES {
        let conditions = &named(pages, source)?.conditions;
        text += &format!("- [{source}](performance/{source}.md): {conditions}\n");
    }
    Ok(text)
}

/// Formats the smallest and the largest cost of the calls of a kind. getppid is no traced call.
fn range(pages: &BTreeMap<&str, Page>, kind: &str) -> Result<String> {
    let of_kind = named(pages, "call")?.rows.iter().filter(|(name, _)| name.ends_with(kind));
    let values: Vec<&str> = of_kind.map(|(_, value)| value.as_str()).collect();
    let read = |value: &&str| first_number(value).with_context(|| format!("call has a row with `{value}`"));
    let numbers: Vec<f64> = values.iter().map(read).collect::<Result<_>>()?;
    let smallest =
        numbers.iter().copied().reduce(f64::min).with_context(|| format!("call has no row {kind}"))?;
    let largest = numbers.iter().copied().fold(smallest, f64::max);
    let note = if values.iter().any(|value| is_open(value)) { "; too few rounds for some calls" } else { "" };
    Ok(format!("{} to {} ns more{note}", whole(smallest.round() as i64), whole(largest.round() as i64)))
}

/// Formats `7.60 ± 3.60 %` as a share of operations; a note if the spread leaves open whether there is a cost.
fn fewer(value: &str) -> String {
    let note = if is_open(value) { "; no verdict: too few rounds" } else { "" };
    format!("{value} fewer operations{note}")
}

/// Checks whether the spread of `7.60 ± 3.60 %` leaves open whether there is a cost.
fn is_open(value: &str) -> bool {
    let spread = value.split(" ± ").nth(1).and_then(first_number).unwrap_or(0.0);
    first_number(value).is_none_or(|value| spread >= value.abs())
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONDITIONS: &str = "*Linux 6.18, 2 × CPU; blkkin abc1234, 2026-11-28; load average before: 1.0.*";

    fn pages() -> BTreeMap<&'static str, Page> {
        let rows = |name: &str| match name {
            "call" => {
                "| lseek(fd) (traced) | 518.2 ± 190.5 ns above | ≤ 300.0 | MISSED |  |\n\
                       | msync(0) (traced) | 287.6 ± 80.9 ns above |\n| lseek(fd) (task not traced) | 70.1 ± 43.0 ns above |\n\
                       | lseek(fd) (excluded by its path) | 1,219.8 ± 58.9 ns above |"
            }
            "iops" => {
                "| fio, psync, random read, 1 job, real disk: fewer with blkkin | 7.60 ± 3.60 % |\n\
                       | fio, io_uring, random read, 1 job, depth 32, real disk: fewer with blkkin | 8.63 ± 3.97 % |\n\
                       | fio, psync, random read, 2 jobs, loop over tmpfs: fewer with blkkin | 12.0 ± 6.84 % |\n\
                       | fio, io_uring, random read, 1 job, depth 32, loop over tmpfs: fewer with blkkin | 38.6 ± 5.93 % |\n\n\
                       | workload | untraced |\n| fio, psync, random read, 1 job, real disk (42 rounds) | 35,703 ± 1,986 |\n\
                       | fio, io_uring, random read, 1 job, depth 32, real disk (42 rounds) | 91,080 ± 2,577 |\n\
                       | fio, psync, random read, 2 jobs, loop over tmpfs (42 rounds) | 108,198 ± 10,142 |\n\
                       | fio, io_uring, random read, 1 job, depth 32, loop over tmpfs (43 rounds) | 281,030 ± 34,830 |"
            }
            "peers" => {
                "| SQLite inserts, ext4: fewer with blkkin | 21.2 ± 6.72 % |\n| PostgreSQL, pgbench with 2 clients | 22.4 ± 39.9 % |"
            }
            "agent" => {
                "| the agent at 10,000 requests/s | 3.00 ± 0.333 % of one CPU |\n| resident at most | 49.0 MiB |"
            }
            "memory" => "| maps in the kernel | 30.4 MiB |",
            _ => "| blkkin run: process start to CMD's begin | 475.1 ± 42.7 ms |",
        };
        let page = |name: &&'static str| {
            Page::parse(name, &format!("# x\n\n{}\n\n{CONDITIONS}\n", rows(name))).unwrap()
        };
        SOURCES.iter().map(|name| (*name, page(name))).collect()
    }

    #[test]
    fn each_line_is_of_a_page() {
        let text = of(&pages()).unwrap();
        for line in [
            "| a system call that is traced | 288 to 518 ns more | [call](performance/call.md) |",
            "| a system call on a file that `--path` excludes | 1,220 to 1,220 ns more | [call](performance/call.md) |",
            "| direct reads of a disk in memory, 2 processes, 108,198 a second | 12.0 ± 6.84 % fewer operations | [iops](performance/iops.md) |",
            "| PostgreSQL with pgbench, ext4 in memory | 22.4 ± 39.9 % fewer operations; no verdict: too few rounds | [peers](performance/peers.md) |",
            "| an agent at 10,000 requests a second | 3.00 ± 0.333 % of one CPU, 49.0 MiB | [agent](performance/agent.md) |",
            "- [call](performance/call.md): Linux 6.18, 2 × CPU; blkkin abc1234, 2026-11-28; load average before: 1.0.",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_missing_figure_is_an_error() {
        let mut pages = pages();
        pages.get_mut("peers").unwrap().rows.clear();
        assert_eq!(of(&pages).unwrap_err().to_string(), "peers has no row `SQLite inserts`");
        pages.remove("call");
        assert_eq!(of(&pages).unwrap_err().to_string(), "call has no page");
        assert!(Page::parse("call", "# x\n\n| a | b |\n").is_err());
    }
}
