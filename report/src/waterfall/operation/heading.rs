//! Which operation it was: how long, what, of whom, who answered, when, and what was said of it.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{AnnotationValue, DaemonSpanEvent, SpanStatus};

use super::errno_text;
use crate::collect::operations::tree::Tree;
use crate::text::line::{Line, harmless, width, wrapped};
use crate::text::style::Ink;
use crate::text::units;
use crate::waterfall::draw::MARGIN;

/// Words of a note that are shown. A query of a page says nothing more.
const WORDS_MAX: usize = 60;
/// Notes shown.
const NOTES_SHOWN: usize = 8;

/// Two lines and more.
pub fn lines(rank: usize, tree: &Tree<'_>, started: MonotonicNs, columns: usize) -> Vec<Line> {
    let Some(operation) = tree.operation() else { return Vec::new() };
    let mut first = Line::of(format!("{rank:>2}  {}  ", units::duration(tree.duration())), Ink::Bold);
    first.push(harmless(&operation.name), Ink::Bold);
    if let Some(end) = end(operation) {
        first.push(format!("  {end}"), Ink::Alarm);
    }
    let said = said(operation);
    let mut lines = Vec::new();
    // Beside it where there is room, else below it.
    if !said.is_empty() && first.width() + 2 + width(&said) <= columns {
        first.push(format!("  {said}"), Ink::Plain);
        lines.push(first);
    } else {
        lines.push(first);
        lines.extend(wrapped(&said, MARGIN, columns, Ink::Plain).into_iter().filter(|_| !said.is_empty()));
    }
    // It is looked for elsewhere by its id: that is never left out.
    let who = who_and_when(tree, operation, started);
    let id = format!("trace {}", tree.trace.id);
    let both = format!("{who} · {id}");
    let texts = if MARGIN + width(&both) <= columns { vec![both] } else { vec![who, id] };
    lines.extend(texts.iter().flat_map(|text| wrapped(text, MARGIN, columns, Ink::Dim)));
    lines
}

fn end(operation: &DaemonSpanEvent) -> Option<String> {
    match operation.status {
        SpanStatus::Ok => None,
        SpanStatus::Error(errno) => Some(format!("failed: {}", errno_text(errno))),
        SpanStatus::Unfinished => Some("no end of it was seen".to_owned()),
    }
}

/// `nbd.offset 4096, nbd.length 4096`; of words that were said again the last.
fn said(operation: &DaemonSpanEvent) -> String {
    let mut said: Vec<(&str, String)> = Vec::new();
    for note in &operation.annotations {
        let value = match &note.value {
            AnnotationValue::Event => continue,
            AnnotationValue::Number(number) => number.to_string(),
            AnnotationValue::Text(text) => short(text),
        };
        match said.iter_mut().find(|(key, _)| *key == &*note.key) {
            Some((_, known)) => *known = value,
            None => said.push((&note.key, value)),
        }
    }
    let more = said.len().saturating_sub(NOTES_SHOWN);
    said.truncate(NOTES_SHOWN);
    let mut words: Vec<String> =
        said.into_iter().map(|(key, value)| format!("{} {value}", harmless(key))).collect();
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    words.join(", ")
}

fn short(text: &str) -> String {
    // A query has lines, and is one here.
    let text = harmless(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match text.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn who_and_when(tree: &Tree<'_>, operation: &DaemonSpanEvent, started: MonotonicNs) -> String {
    let mut services = vec![harmless(&operation.service)];
    for answer in tree.answers().filter_map(Tree::operation) {
        let service = harmless(&answer.service);
        if !services.contains(&service) {
            services.push(service);
        }
    }
    let (pid, tid) = (operation.pid.0, operation.tid.0);
    let pid = match pid {
        0 => "pid not known".to_owned(),
        pid if tid == pid || tid == 0 => format!("pid {pid}"),
        pid => format!("pid {pid} · tid {tid}"),
    };
    // To the microsecond: it is looked for elsewhere by this too.
    let micros = tree.trace.start().since(started).0 / 1_000;
    let at = format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000);
    format!("{} · {pid} · {at} after the start", services.join(" → "))
}
