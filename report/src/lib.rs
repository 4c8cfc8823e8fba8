//! Report of a trace as text for a terminal or as JSON, and the progress line.
//!
//! *In*: [`Trace`](blkkin_aggregator::trace::Trace)s one by one, and the loss counters at the end.
//! *Out*: text ([`Report::render`]), the same content as JSON ([`Report::to_json`]), and one line
//! while tracing runs ([`progress`]).
//!
//! In flow order: [`collect`] aggregates traces, `view` lays out a summary and the asked-for sections with [`text`],
//! [`waterfall`] draws one storage operation, `json` serialises for machines, `output` is the entry
//! point of both.
//!
//! *Invariant*: the crate is pure: no I/O, no clock, no terminal. Width, alphabet and colour are
//! parameters, and equal traces give equal bytes. Memory does not grow with the number of traces
//! (see [`collect`]). No line is wider than requested. Every duration, byte and request is counted
//! in exactly one row of a table; rows beyond a table's end are summed in its last row.
//!
//! *Rejected*: a table library, because bars, dropped columns and headings need our own layout
//! anyway; a full-screen viewer, because a report must survive in scroll-back, a log and a mail.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod collect;
mod json;
pub mod losses;
mod output;
pub mod progress;
mod report;
#[cfg(test)]
mod sample;
pub mod text;
mod view;
pub mod waterfall;

pub use losses::Losses;
pub use progress::Progress;
pub use report::{Report, ReportConfig};
pub use text::style::{Alphabet, Colour, Style};
pub use view::Section;
