//! What a person reads after a trace.
//!
//! *In*: [`Trace`](blkkin_aggregator::trace::Trace)s, one by one, and at the end the counts of what was lost. *Out*:
//! text for a terminal ([`Report::render`]), the same as JSON ([`Report::to_json`]), and while it goes on one
//! line ([`progress`]).
//!
//! In flow order: [`collect`] remembers, `view` lays out with the help of [`text`], [`waterfall`] draws one
//! request, `json` is for machines.
//!
//! *Invariant*: pure. No I/O, no clock, no terminal: width, alphabet and colour are parameters, and the same traces
//! give the same bytes. Memory does not grow with the number of traces (see [`collect`]). No line is wider than
//! asked for. Every time, byte and request is in exactly one row of a table: what is cut off a table's end is summed
//! in its last row.
//!
//! *Rejected*: a table library (numbers, bars and headings over columns need our own fitting anyway), and a
//! full-screen viewer (a report must survive in a terminal's scroll-back, a log, a mail).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod collect;
mod json;
pub mod losses;
pub mod progress;
mod report;
pub mod text;
mod view;
pub mod waterfall;

pub use losses::Losses;
pub use progress::Progress;
pub use report::{Report, ReportConfig};
pub use text::style::{Alphabet, Colour, Style};
