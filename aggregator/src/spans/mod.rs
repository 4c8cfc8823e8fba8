//! Translates traces into spans.
//!
//! *In*: a [`Trace`]. *Out*: its [`Span`]s, the root first, then the layers from the top down.
//!
//! *Invariant*: the spans are a function of the trace alone. A replayed trace gives byte-identical
//! spans, with tags in the same order: Zipkin shows both of two spans that differ in one tag. This
//! module is the only place that knows both vocabularies, the kernel's and OpenTelemetry's.
//!
//! # Services
//!
//! A service is what a user recognizes: the program, the file system, `block`, the disk. Each one
//! calls the next. So the system call is a *client* and the spans of lower layers are *servers*,
//! and Zipkin draws program → ext4 → block → loop0.
//!
//! | span | service | name | kind | id |
//! |---|---|---|---|---|
//! | system call | program | `pwrite64` | client | the call's |
//! | file system | `ext4` | `write` | server | derived from the call's |
//! | asynchronous I/O | program | `io_uring read` | client | the submission's |
//! | its file system | `ext4` | `read` | server | derived from the submission's |
//! | page fault | program | `page fault` | client | the fault's |
//! | commit | `jbd2` | `journal commit` | server | the commit's |
//! | bio | `block` | `bio write` | server | the bio's |
//! | bio of a device without requests | that device | `bio write` | server | the bio's |
//! | lower bio of a stacked device | `block` | `bio write` | local | the bio's |
//! | bio of the kernel's worker that writes dirty pages | `write-back` | `write back file` | server | the bio's |
//! | request | the disk | `request write` | server | the request's |
//!
//! *Stacked devices*: each device is a service, and the upper one calls the lower one: ext4 → block
//! → loop0 → vda, ext4 → dm-1 → dm-0 → sda. *Rejected*: the lower bio as a server too. `block` is
//! one node of the graph, so loop0 → block → vda would close a cycle, and the graph would no longer
//! show which device is on which.
//!
//! *I/O without a call* has no parent. Its remote service is `kernel`, or the program that owns the
//! pages.
//!
//! *The file system's span* has no event of its own: the kernel does not report when ext4 begins.
//! The span is created if the call's file is on a known file system and the call caused I/O. It has
//! the call's times and the evidence `derived`. A device file has none: its bios are children of
//! the call.
//!
//! # Evidence
//!
//! The tag `blkkin.parent.evidence` of each span with a parent states how the parent was found: `exact: …`,
//! `rule: …` or `derived: …`. A parent whose record was lost stays the parent, and
//! `blkkin.missing.parent` marks it as not exported.
//!
//! *An application's span* is the parent of a call that was made for it, in the application's own
//! trace, where a reader finds both. It is not among the spans that are created here, and the call
//! is not a root of that trace.
//!
//! # Write-back
//!
//! The worker submits the bio, and it is the trace's root: no call asked for it at that time.
//! The calls that wrote its data are span links (`written_by`), each with its evidence. A bio that an
//! fsync submits is a child of that call, and links to the writers as well.
//!
//! # A commit is shown once
//!
//! A span belongs to one trace. A commit for which calls waited is exported in the trace of its
//! primary call (see [`crate::join::commits`]), as a child of the file system's span. So "this
//! fdatasync waited for this flush" is one picture. The commit's own trace then gives no spans, and
//! the other calls link to the primary's trace.
//!
//! *Limit*: a bio that was merged into a request of a commit links to the commit's own trace,
//! because the primary was not decided when the bio ended. If the commit is shown in another trace,
//! a search for the span's id finds it.

mod async_io;
mod block;
mod call;
mod commit;
mod daemon_span;
mod error;
mod fault;
mod head_sampling;
mod names;
mod page_origin;
#[cfg(test)]
mod page_origin_tests;
mod placement;
mod process_tags;
mod tags;
#[cfg(test)]
mod tests;

use blkkin_wire::span::Span;

use crate::trace::{Root, Trace};
use placement::SpanPlacement;

/// Returns the spans of a trace. A commit that another trace shows has none.
pub fn spans_of(trace: &Trace) -> Vec<Span> {
    let mut spans =
        Vec::with_capacity(2 + trace.bios.len() + trace.requests.len() + 2 * trace.async_ios.len());
    match &trace.root {
        Root::Call(call) => call::add(trace, call, &mut spans),
        Root::Commit(_) if trace.shown_in.is_some() => {}
        Root::Commit(commit) => commit::add(&SpanPlacement::of(trace), commit, &mut spans),
        Root::DaemonSpan(operation) => daemon_span::add(&SpanPlacement::of(trace), operation, &mut spans),
        Root::Fault(fault) => fault::add(trace, fault, &mut spans),
        Root::AsyncIo | Root::Kernel | Root::Missing => block::add(&SpanPlacement::of(trace), &mut spans),
    }
    if let (Root::AsyncIo, Some(io)) = (&trace.root, trace.root_async_io()) {
        head_sampling::add(io.event.sampling, &mut spans);
    }
    spans
}
