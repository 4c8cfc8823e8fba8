//! Layout of a sample: a line of sums, the disks, and the groups, most device time first.
//!
//! *In*: a [`Sample`], the width, and the rows of a screen. *Out*: lines, no wider than that. On a screen the second
//! table ends where its rows do; rows that have no place are summed in its last one.

use std::collections::{BTreeMap, VecDeque};

use blkkin_report::text::line::Line;
use blkkin_report::text::style::Ink;
use blkkin_report::text::table::{Column, Row, Table};
use blkkin_report::text::units::{self, NONE};
use blkkin_report::{Alphabet, Style};
use blkkin_tracer::totals::{RequestTotal, longest, quantile};
use blkkin_wire::clock::DurationNs;

use super::cgroup_names::CgroupNames;
use super::sample::{GroupKey, Sample};
use crate::cli::Group;

/// Intervals of a sparkline.
const HISTORY: usize = 24;
/// Width from which disks have a sparkline.
const HISTORY_WIDTH: usize = 110;
/// Rows of a screen for the table of disks, with its heading.
const DISK_ROWS: usize = 8;
/// Rows of the table of groups where there is no screen.
const ROWS_WITHOUT_SCREEN: usize = 20;

/// Order of the groups, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Time,
    Requests,
    Bytes,
    P99,
}

/// Layout that the user chose.
#[derive(Debug, Default)]
pub(super) struct View {
    group: Group,
    /// Keys work.
    is_interactive: bool,
    pub(super) is_paused: bool,
    sort: Sort,
    /// Requests a second in the last intervals, by disk.
    history: BTreeMap<Box<str>, VecDeque<u64>>,
}

impl View {
    pub(super) fn new(group: Group, is_interactive: bool) -> View {
        View { group, is_interactive, ..View::default() }
    }

    pub(super) fn on_key(&mut self, key: char) {
        match key {
            'p' => self.group = Group::Program,
            'c' => self.group = Group::Cgroup,
            'o' => self.group = Group::Operation,
            'a' => self.group = Group::All,
            ' ' => self.is_paused = !self.is_paused,
            's' => {
                self.sort = match self.sort {
                    Sort::Time => Sort::Requests,
                    Sort::Requests => Sort::Bytes,
                    Sort::Bytes => Sort::P99,
                    Sort::P99 => Sort::Time,
                }
            }
            _ => {}
        }
    }

    /// Keeps a sample for the sparklines.
    pub(super) fn remember(&mut self, sample: &Sample) {
        let disks = sample.by_disk();
        for disk in disks.keys() {
            self.history.entry(disk.clone()).or_default();
        }
        for (disk, history) in &mut self.history {
            let requests = disks.get(disk).map_or(0, |total| rate(total.requests, sample));
            history.push_back(requests);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
    }

    /// Lays out a sample.
    pub(super) fn lines(
        &self,
        sample: &Sample,
        names: &mut CgroupNames,
        style: &Style,
        rows: Option<usize>,
    ) -> Vec<String> {
        let mut lines = vec![headline(sample, self.is_paused), Line::new()];
        lines.extend(self.disks(sample, style));
        lines.push(Line::new());
        let mut footer = footer(sample, self);
        if rows.is_none() {
            footer.insert(0, Line::new());
        }
        let room = rows
            .map_or(ROWS_WITHOUT_SCREEN, |rows| rows.saturating_sub(lines.len() + footer.len() + 2).max(2));
        lines.extend(self.groups(sample, names, style, room));
        if let Some(rows) = rows {
            lines.resize(rows.saturating_sub(footer.len()).max(lines.len()), Line::new());
        }
        lines.extend(footer);
        lines.iter().map(|line| line.paint(style)).collect()
    }

    fn disks(&self, sample: &Sample, style: &Style) -> Vec<Line> {
        let shows_history = style.columns() >= HISTORY_WIDTH && style.alphabet == Alphabet::Unicode;
        let mut columns = vec![
            Column::name("disk"),
            Column::number("requests/s"),
            Column::number("bytes/s").droppable(1),
            Column::number("depth").droppable(2),
            Column::number("queue p50").droppable(0),
            Column::number("queue p99"),
            Column::number("device p50"),
            Column::number("device p99"),
            Column::number("longest").droppable(3),
        ];
        if shows_history {
            columns.push(Column::name("requests/s before"));
        }
        let mut table = Table::new(columns);
        let disks = sample.by_disk();
        for (disk, total) in disks.iter().take(DISK_ROWS) {
            let mut cells = vec![
                disk.to_string(),
                units::count(rate(total.requests, sample)),
                units::bytes(rate(total.bytes, sample)),
                depth(total, sample),
            ];
            cells.extend(times(total));
            if shows_history {
                cells.push(self.history.get(disk).map(sparkline).unwrap_or_default());
            }
            table.push(Row::new(cells, Ink::Plain));
        }
        let mut lines = table.lines(style.columns());
        if disks.is_empty() {
            lines.push(Line::of("no request completed", Ink::Dim));
        }
        let more = disks.len().saturating_sub(DISK_ROWS);
        if more > 0 {
            lines.push(Line::of(format!("and {} more", units::counted(more as u64, "disk")), Ink::Dim));
        }
        lines
    }

    fn groups(&self, sample: &Sample, names: &mut CgroupNames, style: &Style, rows: usize) -> Vec<Line> {
        let mut groups: Vec<(GroupKey, RequestTotal)> = sample.by(self.group).into_iter().collect();
        groups.sort_by_key(|(_, total)| std::cmp::Reverse(self.sort.of(total)));
        let whole = sample.total().device_ns.max(1);
        let mut table = Table::new(vec![
            Column::name(title(self.group)),
            Column::number("requests/s"),
            Column::number("bytes/s").droppable(1),
            Column::number("failed").droppable(4),
            Column::number("queue p99").droppable(0),
            Column::number("device p50").droppable(2),
            Column::number("device p99"),
            Column::number("longest").droppable(3),
            Column::number("device time"),
        ]);
        let fits = groups.len() + usize::from(sample.others.requests > 0) <= rows;
        let shown = if fits { groups.len() } else { rows.saturating_sub(1) };
        let mut rest = sample.others.clone();
        for (n, (key, total)) in groups.iter().enumerate() {
            match n < shown {
                true => table.push(row(self.name(key, names), total, whole, sample)),
                false => rest.add(total),
            }
        }
        if rest.requests > 0 {
            let left = groups.len() - shown.min(groups.len());
            let name = if left == 0 { "without a key".to_owned() } else { format!("{left} more") };
            table.push(row(name, &rest, whole, sample));
        }
        if groups.is_empty() && rest.requests == 0 { Vec::new() } else { table.lines(style.columns()) }
    }

    fn name(&self, key: &GroupKey, names: &mut CgroupNames) -> String {
        let cgroup = key.cgroup.map(|id| names.path(id)).unwrap_or_default();
        match self.group {
            Group::Program => key.program.to_string(),
            Group::Cgroup => cgroup,
            Group::Operation => format!("{} {}", key.disk, key.operation),
            Group::All => format!("{} {} {} {cgroup}", key.program, key.disk, key.operation),
        }
    }
}

impl Sort {
    fn of(self, total: &RequestTotal) -> u64 {
        match self {
            Sort::Time => total.device_ns,
            Sort::Requests => total.requests,
            Sort::Bytes => total.bytes,
            Sort::P99 => quantile(&total.device, 0.99).unwrap_or(0),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Time => "time",
            Sort::Requests => "requests",
            Sort::Bytes => "bytes",
            Sort::P99 => "p99",
        }
    }
}

/// Returns the heading of the table of groups.
fn title(group: Group) -> &'static str {
    match group {
        Group::Program => "program",
        Group::Cgroup => "cgroup",
        Group::Operation => "operation",
        Group::All => "requests of",
    }
}

fn headline(sample: &Sample, is_paused: bool) -> Line {
    let total = sample.total();
    let mut line = Line::of("blkkin top", Ink::Bold);
    let text = format!(
        "  {} UTC  {:.1} s  {} requests/s  {}/s",
        sample.time.format("%H:%M:%S"),
        sample.length.as_secs_f64(),
        units::count(rate(total.requests, sample)),
        units::bytes(rate(total.bytes, sample)),
    );
    line.push(text, Ink::Plain);
    if total.errors > 0 {
        line.push(format!("  {} failed", units::count(total.errors)), Ink::Alarm);
    }
    if is_paused {
        line.push("  paused", Ink::Bold);
    }
    line
}

fn footer(sample: &Sample, view: &View) -> Vec<Line> {
    let mut lines = Vec::new();
    let lost = [(sample.untracked, "too many in flight"), (sample.missed, "skipped by the kernel")];
    let lost: Vec<String> = lost
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{} {why}", units::count(*count)))
        .collect();
    lines.push(match lost.is_empty() {
        true => Line::of("not counted: nothing", Ink::Dim),
        false => Line::of(format!("not counted: {}", lost.join(", ")), Ink::Alarm),
    });
    if view.is_interactive {
        let keys = format!(
            "q quit  p program  c cgroup  o operation  a all  s sort ({})  space pause",
            view.sort.name()
        );
        lines.push(Line::of(keys, Ink::Dim));
    }
    lines
}

fn row(name: String, total: &RequestTotal, whole: u64, sample: &Sample) -> Row {
    let [_, queue_p99, device_p50, device_p99, longest] = times(total);
    let cells = vec![
        name,
        units::count(rate(total.requests, sample)),
        units::bytes(rate(total.bytes, sample)),
        units::count(total.errors),
        queue_p99,
        device_p50,
        device_p99,
        longest,
        units::share(total.device_ns, whole),
    ];
    let ink = if total.errors > 0 { Ink::Alarm } else { Ink::Plain };
    Row::new(cells, ink).with_bar(total.device_ns, whole)
}

/// Returns median and p99 in the queue, then median, p99 and longest in the device.
fn times(total: &RequestTotal) -> [String; 5] {
    let cell = |ns: Option<u64>| ns.map_or_else(|| NONE.to_owned(), |ns| units::duration(DurationNs(ns)));
    [
        cell(quantile(&total.queue, 0.5)),
        cell(quantile(&total.queue, 0.99)),
        cell(quantile(&total.device, 0.5)),
        cell(quantile(&total.device, 0.99)),
        cell(longest(&total.device)),
    ]
}

/// Returns the number a second.
fn rate(count: u64, sample: &Sample) -> u64 {
    let seconds = sample.length.as_secs_f64();
    if seconds > 0.0 { (count as f64 / seconds).round() as u64 } else { 0 }
}

/// Returns the mean number of requests in the device: their time there by that of the interval (Little's law).
fn depth(total: &RequestTotal, sample: &Sample) -> String {
    let seconds = sample.length.as_secs_f64();
    if seconds > 0.0 { format!("{:.1}", total.device_ns as f64 / 1e9 / seconds) } else { NONE.to_owned() }
}

fn sparkline(values: &VecDeque<u64>) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let max = values.iter().copied().max().unwrap_or(0).max(1);
    values.iter().map(|value| BLOCKS[(value * 7).div_ceil(max) as usize]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use blkkin_probe_abi::totals::bucket_of;
    use blkkin_report::Colour;
    use blkkin_tracer::totals::RequestKey;
    use blkkin_wire::ids::DeviceId;

    use super::*;

    fn total(requests: u64, queue_ns: u64, device_ns: u64) -> RequestTotal {
        let mut total = RequestTotal {
            requests,
            bytes: requests * 4096,
            queue_ns: requests * queue_ns,
            device_ns: requests * device_ns,
            ..RequestTotal::default()
        };
        total.queue[bucket_of(queue_ns)] = requests;
        total.device[bucket_of(device_ns)] = requests;
        total
    }

    fn sample(programs: u64) -> Sample {
        let disk = DeviceId { major: 259, minor: 0 };
        let rows = (0..programs).map(|n| {
            let key =
                RequestKey { program: format!("program{n}").into(), cgroup: 1, disk, operation: "read" };
            (key, total(1_000 - n, 2_000, 90_000))
        });
        Sample {
            length: Duration::from_secs(1),
            rows: rows.collect(),
            disks: [(disk, "nvme0n1".into())].into(),
            ..Sample::default()
        }
    }

    fn screen(view: &View, sample: &Sample, width: usize, rows: usize) -> Vec<String> {
        let style = Style { width, alphabet: Alphabet::Unicode, colour: Colour::Never };
        let lines = view.lines(sample, &mut CgroupNames::default(), &style, Some(rows));
        assert_eq!(lines.len(), rows, "{lines:#?}");
        for line in &lines {
            assert!(line.chars().count() <= width, "{line}");
        }
        lines
    }

    fn heading(lines: &[String]) -> Option<usize> {
        lines.iter().position(|line| line.trim_start().starts_with("program "))
    }

    #[test]
    fn a_screen_is_full_and_its_rows_are_all_requests() {
        let view = View::new(Group::Program, true);
        for (programs, width, rows) in [(0, 80, 24), (3, 80, 24), (100, 80, 24), (100, 100, 30), (9, 132, 50)]
        {
            let sample = sample(programs);
            let lines = screen(&view, &sample, width, rows);
            let number = |line: &String| {
                let cells: Vec<&str> = line.split_whitespace().collect();
                let at = if cells[1] == "more" { 2 } else { 1 };
                cells[at].replace(',', "").parse::<u64>().unwrap()
            };
            assert!(lines[rows - 2].starts_with("not counted: nothing"), "{lines:#?}");
            assert!(lines[rows - 1].starts_with("q quit"), "{lines:#?}");
            let Some(heading) = heading(&lines) else {
                assert_eq!(programs, 0);
                continue;
            };
            let groups = lines[heading + 1..].iter().take_while(|line| line.starts_with("  "));
            assert_eq!(groups.map(number).sum::<u64>(), sample.total().requests, "{lines:#?}");
        }
    }

    #[test]
    fn what_is_not_counted_is_named() {
        let sample = Sample { untracked: 1_200, missed: 3, ..sample(1) };
        let lines = screen(&View::default(), &sample, 80, 24);
        assert_eq!(lines[23], "not counted: 1,200 too many in flight, 3 skipped by the kernel");
    }

    #[test]
    fn keys_change_group_and_order() {
        let mut view = View::default();
        let mut sample = sample(2);
        sample.rows[1].1.device_ns *= 50;
        let first = |view: &View| {
            let lines = screen(view, &sample, 80, 24);
            let heading = heading(&lines).unwrap();
            lines[heading + 1].split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!(first(&view), "program1");
        view.on_key('s');
        assert_eq!(first(&view), "program0");
        view.on_key('o');
        assert!(screen(&view, &sample, 80, 24).iter().any(|line| line.contains("nvme0n1 read")));
    }
}
