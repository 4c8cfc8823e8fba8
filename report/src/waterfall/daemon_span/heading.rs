//! Heading of a daemon span's waterfall: duration, name, tags, services, process, start time.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{AnnotationValue, DaemonSpanEvent, SpanStatus};

use super::errno_text;
use crate::collect::daemon_spans::tree::SpanTree;
use crate::text::line::{Line, sanitize, width, wrap};
use crate::text::style::Ink;
use crate::text::units;
use crate::waterfall::draw::MARGIN;
use crate::waterfall::heading::after_start;

/// Maximum number of characters of a tag's value. A query can have a page of text.
const VALUE_MAX: usize = 60;
/// Maximum number of tags.
const TAGS_SHOWN: usize = 8;

/// Returns two or more lines.
pub fn lines(rank: usize, tree: &SpanTree<'_>, started: MonotonicNs, columns: usize) -> Vec<Line> {
    let Some(span) = tree.daemon_span() else { return Vec::new() };
    let mut first = Line::of(format!("{rank:>2}  {}  ", units::duration(tree.duration())), Ink::Bold);
    first.push(sanitize(&span.name), Ink::Bold);
    if let Some(status) = status(span) {
        first.push(format!("  {status}"), Ink::Alarm);
    }
    let tags = tags(span);
    let mut lines = Vec::new();
    // After the name if the tags fit, else on the next lines.
    if !tags.is_empty() && first.width() + 2 + width(&tags) <= columns {
        first.push(format!("  {tags}"), Ink::Plain);
        lines.push(first);
    } else {
        lines.push(first);
        lines.extend(wrap(&tags, MARGIN, columns, Ink::Plain).into_iter().filter(|_| !tags.is_empty()));
    }
    // Readers search other tools for the trace id, so it is never cut.
    let process = process_and_start(tree, span, started);
    let id = format!("trace {}", tree.trace.id);
    let both = format!("{process} · {id}");
    let texts = if MARGIN + width(&both) <= columns { vec![both] } else { vec![process, id] };
    lines.extend(texts.iter().flat_map(|text| wrap(text, MARGIN, columns, Ink::Dim)));
    lines
}

fn status(span: &DaemonSpanEvent) -> Option<String> {
    match span.status {
        SpanStatus::Ok => None,
        SpanStatus::Error(errno) => Some(format!("failed: {}", errno_text(errno))),
        SpanStatus::Unfinished => Some("no end recorded".to_owned()),
    }
}

/// Formats the tags: `nbd.offset 4096, nbd.length 4096`. A repeated key has its last value.
fn tags(span: &DaemonSpanEvent) -> String {
    let mut tags: Vec<(&str, String)> = Vec::new();
    for annotation in &span.annotations {
        let value = match &annotation.value {
            AnnotationValue::Event => continue,
            AnnotationValue::Number(number) => number.to_string(),
            AnnotationValue::Text(text) => shorten(text),
        };
        match tags.iter_mut().find(|(key, _)| *key == &*annotation.key) {
            Some((_, known)) => *known = value,
            None => tags.push((&annotation.key, value)),
        }
    }
    let more = tags.len().saturating_sub(TAGS_SHOWN);
    tags.truncate(TAGS_SHOWN);
    let mut texts: Vec<String> =
        tags.into_iter().map(|(key, value)| format!("{} {value}", sanitize(key))).collect();
    if more > 0 {
        texts.push(format!("and {more} more"));
    }
    texts.join(", ")
}

fn shorten(text: &str) -> String {
    // A query can have several lines; here it has one.
    let text = sanitize(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match text.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn process_and_start(tree: &SpanTree<'_>, span: &DaemonSpanEvent, started: MonotonicNs) -> String {
    let mut services = vec![sanitize(&span.service)];
    for server in tree.servers().filter_map(SpanTree::daemon_span) {
        let service = sanitize(&server.service);
        if !services.contains(&service) {
            services.push(service);
        }
    }
    let (pid, tid) = (span.pid.0, span.tid.0);
    let pid = match pid {
        0 => "unknown pid".to_owned(),
        pid if tid == pid || tid == 0 => format!("pid {pid}"),
        pid => format!("pid {pid} · tid {tid}"),
    };
    format!("{} · {pid} · {}", services.join(" → "), after_start(tree.trace, started))
}
