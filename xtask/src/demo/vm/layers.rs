//! Layers of a trace that continues from a guest on its host: the share of each, and a drawing.
//!
//! *In*: the spans of a trace, as Zipkin returns them. *Out*: the time of each layer; their sum is the duration of
//! the guest's system call. *Invariant*: each microsecond belongs to the innermost layer that was at work: a request
//! of the host's disks, else a system call of QEMU, else a request of the guest's disk, else the guest's kernel.
//! A request of the guest without an operation of QEMU would count all of its time as QEMU's, so its trace has no
//! [`Layers`].

use std::collections::BTreeMap;
use std::ops::{AddAssign, Range};

use serde_json::Value;

/// Names of the layers, outermost first, in the order of [`Layers::times`].
pub(super) const NAMES: [&str; 4] = ["guest kernel", "QEMU", "host kernel", "device"];

/// Width of the bars.
const BAR: usize = 18;
/// Width of the tree of services and names.
const TREE: usize = 38;

/// Times of the layers in µs, of one trace or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layers {
    pub(super) calls: u64,
    pub(super) times: [u64; 4],
}

impl AddAssign for Layers {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        for (sum, time) in self.times.iter_mut().zip(other.times) {
            *sum += time;
        }
    }
}

/// Spans of a trace with their machines.
pub(super) struct GuestTrace<'a> {
    /// The guest's system call first, then depth first.
    spans: Vec<Placed<'a>>,
}

struct Placed<'a> {
    span: &'a Value,
    depth: usize,
    is_host: bool,
    /// True if a span below is of the host.
    has_host: bool,
}

impl<'a> GuestTrace<'a> {
    /// Orders the spans of a trace; `None` without a root, or if the root is not of this machine id.
    pub(super) fn new(spans: &'a [Value], guest: &str) -> Option<Self> {
        let mut children = BTreeMap::<&str, Vec<&Value>>::new();
        for span in spans {
            children.entry(text(&span["parentId"])).or_default().push(span);
        }
        children.values_mut().for_each(|below| below.sort_by_key(|span| range(span).start));
        let [root] = children.get("")?[..] else { return None };
        if host_id(root) != Some(guest) {
            return None;
        }
        let mut trace = Self { spans: Vec::new() };
        trace.place(root, 0, false, guest, &children);
        Some(trace)
    }

    /// Adds a span and those below it; returns whether one of them is of the host.
    fn place(
        &mut self,
        span: &'a Value,
        depth: usize,
        below_host: bool,
        guest: &str,
        children: &BTreeMap<&str, Vec<&'a Value>>,
    ) -> bool {
        // Only the first span of each machine has the tag.
        let is_host = host_id(span).map_or(below_host, |id| id != guest);
        let at = self.spans.len();
        self.spans.push(Placed { span, depth, is_host, has_host: false });
        let mut has_host = is_host;
        for child in children.get(text(&span["id"])).into_iter().flatten() {
            has_host |= self.place(child, depth + 1, is_host, guest, children);
        }
        self.spans[at].has_host = has_host;
        has_host
    }

    /// Returns the duration of the guest's system call, in µs.
    pub(super) fn duration(&self) -> u64 {
        let root = range(self.spans[0].span);
        root.end - root.start
    }

    /// Returns the number of the guest's requests, and of those with an operation of QEMU.
    pub(super) fn requests(&self) -> (u64, u64) {
        let requests = || self.spans.iter().filter(|one| is_request(one.span) && !one.is_host);
        (requests().count() as u64, requests().filter(|one| one.has_host).count() as u64)
    }

    /// Returns the times of the layers; `None` without requests, or if one has no operation of QEMU.
    pub(super) fn layers(&self) -> Option<Layers> {
        let (requests, linked) = self.requests();
        if requests == 0 || requests > linked {
            return None;
        }
        let root = range(self.spans[0].span);
        let of = |belongs: fn(&Placed<'_>) -> bool| {
            let ranges = self.spans.iter().filter(|one| belongs(one)).map(|one| range(one.span));
            union(ranges.map(|one| one.start.max(root.start)..one.end.min(root.end)).collect())
        };
        // Each of them together with those inside it.
        let device = of(|one| one.is_host && is_request(one.span));
        let host = of(|one| one.is_host);
        let requests = of(|one| one.is_host || is_request(one.span));
        let times = [root.end - root.start - requests, requests - host, host - device, device];
        Some(Layers { calls: 1, times })
    }

    /// Draws the system calls, journal commits and requests that begin first, up to `lines_max`, in at most 80 columns.
    pub(super) fn draw(&self, lines_max: usize) -> Vec<String> {
        let root = range(self.spans[0].span);
        let total = (root.end - root.start).max(1) as usize;
        let column = |time: u64| ((time.clamp(root.start, root.end) - root.start) as usize * BAR) / total;
        let mut lines: Vec<String> = Vec::new();
        // Depths of the drawn spans above.
        let mut above: Vec<usize> = Vec::new();
        for Placed { span, depth, is_host, .. } in self.spans.iter().filter(|one| one.is_drawn()) {
            above.retain(|drawn| drawn < depth);
            let own = range(span);
            let from = column(own.start).min(BAR - 1);
            let to = column(own.end).max(from + 1);
            let bar = " ".repeat(from) + &(if *is_host { "█" } else { "▒" }).repeat(to - from);
            let name = format!("{}{} {}", "  ".repeat(above.len()), service(span), text(&span["name"]));
            let name: String = name.chars().take(TREE).collect();
            let machine = if *is_host { "host" } else { "guest" };
            let duration = microseconds(own.end - own.start);
            lines.push(format!("  {machine:<5} {name:<TREE$} {duration:>12}  {bar}").trim_end().to_owned());
            above.push(*depth);
        }
        let rest = lines.len().saturating_sub(lines_max);
        if rest > 0 {
            lines.truncate(lines_max);
            lines.push(format!("  … and {rest} more"));
        }
        lines
    }
}

impl Placed<'_> {
    /// Returns whether a drawing has it. A file system's span has the times of its call, and a bio those of its request.
    fn is_drawn(&self) -> bool {
        let name = text(&self.span["name"]);
        self.depth == 0
            || name == "journal commit"
            || is_request(self.span)
            || service(self.span).starts_with("qemu")
    }
}

/// Formats a time as `1.2 ms`.
pub(super) fn milliseconds(time: u64) -> String {
    format!("{:.1} ms", time as f64 / 1e3)
}

/// Formats a time as `1,234 µs`.
fn microseconds(time: u64) -> String {
    format!("{} µs", super::super::output::thousands(time))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn service(span: &Value) -> &str {
    text(&span["localEndpoint"]["serviceName"])
}

fn host_id(span: &Value) -> Option<&str> {
    span["tags"]["host.id"].as_str()
}

fn is_request(span: &Value) -> bool {
    text(&span["name"]).starts_with("request ")
}

fn range(span: &Value) -> Range<u64> {
    let number = |name: &str| span[name].as_u64().unwrap_or_default();
    number("timestamp")..number("timestamp") + number("duration")
}

/// Returns the length of the union.
fn union(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut length, mut end) = (0, 0);
    for range in ranges {
        length += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    length
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn span(id: &str, parent: Option<&str>, name: &str, at: (u64, u64), host: Option<&str>) -> Value {
        let mut span = json!({
            "id": id, "name": name, "timestamp": at.0, "duration": at.1 - at.0,
            "localEndpoint": { "serviceName": "s" }, "tags": {},
        });
        if let Some(parent) = parent {
            span["parentId"] = parent.into();
        }
        if let Some(host) = host {
            span["tags"]["host.id"] = host.into();
        }
        span
    }

    /// A call of 100 µs with a request from 10 to 90 µs; QEMU's call is from 30 to 80 and the device's request from 40 to 60.
    fn linked() -> Vec<Value> {
        let mut spans = vec![
            span("5", Some("4"), "request write", (1_040, 1_060), None),
            span("2", Some("1"), "bio write", (1_005, 1_095), None),
            span("1", None, "pwrite64", (1_000, 1_100), Some("guest")),
            span("3", Some("2"), "request write", (1_010, 1_090), None),
            span("4", Some("3"), "pwrite64", (1_030, 1_080), Some("host")),
        ];
        spans[4]["localEndpoint"]["serviceName"] = "qemu".into();
        spans
    }

    #[test]
    fn each_microsecond_belongs_to_the_innermost_layer() {
        let spans = linked();
        let trace = GuestTrace::new(&spans, "guest").unwrap();
        assert_eq!((trace.duration(), trace.requests()), (100, (1, 1)));
        assert_eq!(trace.layers().unwrap(), Layers { calls: 1, times: [20, 30, 30, 20] });
    }

    #[test]
    fn what_lasts_longer_than_the_call_is_cut_and_what_overlaps_counts_once() {
        let mut spans = linked();
        spans.push(span("6", Some("2"), "request write", (1_050, 1_130), None));
        spans.push(span("7", Some("6"), "fdatasync", (1_055, 1_120), Some("host")));
        let layers = GuestTrace::new(&spans, "guest").unwrap().layers().unwrap();
        assert_eq!(layers.times, [10, 20, 50, 20]);
    }

    #[test]
    fn a_request_without_an_operation_of_qemu_leaves_the_trace_out() {
        let mut spans = linked();
        spans.push(span("6", Some("2"), "request flush", (1_091, 1_094), None));
        let trace = GuestTrace::new(&spans, "guest").unwrap();
        assert_eq!((trace.requests(), trace.layers()), ((2, 1), None));
        // A trace of the host, and one without its root.
        assert!(GuestTrace::new(&linked(), "other").is_none());
        assert!(GuestTrace::new(&linked()[3..], "guest").is_none());
    }

    #[test]
    fn drawing_shows_each_machine_and_fits_a_terminal() {
        let spans = linked();
        let lines = GuestTrace::new(&spans, "guest").unwrap().draw(3);
        assert_eq!(lines.len(), 4, "{lines:#?}");
        let is_drawn = |line: &str, name: &str, time: &str| line.starts_with(name) && line.contains(time);
        assert!(is_drawn(&lines[0], "  guest s pwrite64 ", "100 µs") && lines[0].ends_with(&"▒".repeat(BAR)));
        assert!(is_drawn(&lines[1], "  guest   s request write ", "80 µs"), "{lines:#?}");
        assert!(is_drawn(&lines[2], "  host      qemu pwrite64 ", "50 µs"), "{lines:#?}");
        assert_eq!(lines[3], "  … and 1 more");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        let long = [span("1", None, "fdatasync", (0, 9_999_999), Some("guest"))];
        let lines = GuestTrace::new(&long, "guest").unwrap().draw(4);
        assert_eq!(lines[0].chars().count(), 79, "{lines:#?}");
    }
}
