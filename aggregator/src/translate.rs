//! Traces in the words of tracing systems: the only place that knows both.
//!
//! *In*: a [`Trace`]. *Out*: its [`Span`]s, the root first, then depth by layer.
//! *Invariant*: a function of the trace alone. A trace that is replayed gives byte-identical spans, tags in the same
//! order, because Zipkin shows both of two spans that differ in one tag.
//!
//! # Services
//!
//! What a person would point at: the program, the file system, `block`, the disk. Each asks the next, so the
//! call is a *client* and what is below it *servers*: Zipkin then draws program → ext4 → block → loop0.
//!
//! | span | service | name | side | id |
//! |---|---|---|---|---|
//! | system call | program | `pwrite64` | client | the call's |
//! | file system | `ext4` | `write` | server | derived from the call's |
//! | commit | `jbd2` | `journal commit` | server | the commit's |
//! | bio | `block` | `bio write` | server | the bio's |
//! | the same, of a device that makes no requests | that device | `bio write` | server | the bio's |
//! | the same, queued by the driver of a device above | `block` | `bio write` | neither | the bio's |
//! | request | the disk | `request write` | server | the request's |
//!
//! *Devices on devices*: each is a service, and the one above asks the one below: ext4 → block → loop0 → vda,
//! ext4 → dm-1 → dm-0 → sda. *Rejected*: the bio between the two as a server too. `block` is one node of the graph, so that
//! loop0 → block → vda would close a circle, in which nobody could see which device lies on which.
//!
//! *What no call asked for* has no span above, and names who asked as the other side: `kernel`, or the program whose pages
//! they are.
//!
//! *The file system's span* is not an event of its own: nothing in the kernel says when ext4 begins. It is made
//! where the call's file is known to lie on a file system and the call caused I/O, has the call's times and
//! says that it is `derived`. A device file has none: its bios hang below the call.
//!
//! # How a link was made
//!
//! Tag `blkkin.link` on each span that has a parent: `exact: …`, `rule: …` or `derived: …`. A parent whose record was
//! lost stays the parent (it was), and `blkkin.missing.parent` says that it will not be found.
//!
//! *An application's span* is the parent of a call that was made for it, in the application's own trace: whoever looks there has
//! both halves. It is not among the spans that are made here, and the call is none of its trace's roots.
//!
//! # A commit is shown once
//!
//! One span belongs to one trace. A commit that calls waited for is exported in the trace of its primary call (see
//! [`crate::join::commits`]), below its file system, so that "this fdatasync waited for this flush" is one picture;
//! its own trace then gives no spans. The other calls link to it there.
//!
//! *Limit*: a bio that travelled in a request of a commit links to the commit's own trace, as who would show the commit
//! was not decided when the bio ended; where it was adopted, search for the span's id.

mod application;
mod block;
mod call;
mod commit;
mod error;
mod names;
mod operation;
mod place;
mod tags;
#[cfg(test)]
mod tests;

use blkkin_wire::span::Span;

use crate::trace::{Root, Trace};
use place::Place;

/// The spans of a trace; none for a commit that another trace shows.
pub fn spans(trace: &Trace) -> Vec<Span> {
    let mut spans = Vec::with_capacity(2 + trace.bios.len() + trace.requests.len());
    match &trace.root {
        Root::Call(call) => call::add(trace, call, &mut spans),
        Root::Commit(_) if trace.adopted_by.is_some() => {}
        Root::Commit(commit) => commit::add(&Place::of(trace), commit, &mut spans),
        Root::Operation(operation) => operation::add(&Place::of(trace), operation, &mut spans),
        Root::Kernel | Root::Missing => block::add(&Place::of(trace), &mut spans),
    }
    spans
}
