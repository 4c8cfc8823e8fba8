//! Tags and links of a bio with pages of a page cache.
//!
//! *In*: the origin of the bio's pages. *Out*: tags for the file, the programs that wrote, and the bytes
//! without a known writer; a span link `written_by` for each writer.
//!
//! *Invariant*: a writer is a link and never a parent. The submitter of the bio (the kernel's
//! worker, an fsync) and the writer of its data are two relations. Each link states its evidence.
//!
//! *Rejected*: a link per write call of a bio. A log that was appended to by 4,096 small writes would
//! need that many; the first [`LINKS_MAX`] by bytes are linked, and `blkkin.writers` counts all.

use std::cmp::Reverse;

use blkkin_wire::event::{BioEvent, Submitter};
use blkkin_wire::page_origin::{PageKind, PageOriginEvent, PageWriter, Unattributed, WriterEvidence};
use blkkin_wire::span::SpanLink;

use super::tags::Tags;
use crate::trace::page_origins::{OriginNames, WriterName};

/// Maximum number of linked writers of a bio, and of named processes.
const LINKS_MAX: usize = 8;

/// Returns the span name of a bio of the kernel's own with this content; none if it is a read.
pub(super) fn kernel_bio_name(bio: &BioEvent, origin: Option<&PageOriginEvent>) -> Option<&'static str> {
    let origin = origin.filter(|_| bio.submitter == Submitter::Kernel && bio.op.is_write())?;
    Some(match origin.kind {
        PageKind::File => "write back file",
        PageKind::Device => "write back device pages",
        PageKind::Metadata => "write back metadata",
        PageKind::Log => "log write",
        PageKind::Swap => "swap write",
    })
}

/// Returns whether a bio of the kernel's own is write-back: pages that wait in memory until they
/// are written.
pub(super) fn is_write_back(bio: &BioEvent, origin: Option<&PageOriginEvent>) -> bool {
    let waits = |kind| matches!(kind, PageKind::File | PageKind::Device | PageKind::Metadata);
    bio.submitter == Submitter::Kernel && bio.op.is_write() && origin.is_some_and(|origin| waits(origin.kind))
}

/// Adds the tags of a bio's pages.
pub(super) fn tags(origin: &PageOriginEvent, names: &OriginNames, tags: &mut Tags) {
    if let Some(file) = &origin.file {
        tags.shared("file.path", &names.path(file));
    }
    tags.text("blkkin.page.kind", origin.kind.name());
    if matches!(origin.kind, PageKind::File | PageKind::Device) {
        tags.number("blkkin.file.offset", origin.offset);
        tags.count("blkkin.file.parts", origin.parts.len() as u32);
    }
    if let Some(reason) = origin.reason {
        tags.text("blkkin.writeback.reason", reason.name());
    }
    tags.count("blkkin.writers", origin.writers.len() as u32);
    if let Some(programs) = programs(origin, names) {
        tags.owned("blkkin.writer.programs", programs);
    }
    let first = origin.writers.iter().filter(|writer| writer.evidence.has_age());
    let first = first.map(|writer| writer.dirtied).min();
    let age = first.map(|dirtied| origin.time.since(dirtied));
    tags.maybe("blkkin.dirty.ns", age.map(|age| age.0));
    tags.count("blkkin.unattributed.bytes", origin.bytes_unattributed);
    if let Some(why) = origin.unattributed {
        tags.text("blkkin.unattributed.reason", unattributed_name(why));
    }
}

/// Returns the processes whose data the bio carries, those with most bytes first, as `dd (pid 4711), cp (pid
/// 4712)`. A bio of a loop device names none: the trace that its link leads to does.
fn programs(origin: &PageOriginEvent, names: &OriginNames) -> Option<String> {
    let mut processes: Vec<(&WriterName, u64)> = Vec::new();
    let carried =
        |writer: &&PageWriter| writer.evidence.is_carried() && writer.evidence != WriterEvidence::LoopDevice;
    for writer in origin.writers.iter().filter(carried) {
        let Some(name) = names.writers.get(&writer.task) else { continue };
        // A process that executes another program keeps its pid.
        let same = |known: &WriterName| known.task.pid == name.task.pid && known.program() == name.program();
        match processes.iter_mut().find(|(known, _)| same(known)) {
            Some((_, bytes)) => *bytes += u64::from(writer.bytes),
            None => processes.push((name, u64::from(writer.bytes))),
        }
    }
    processes.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let shown = processes.iter().take(LINKS_MAX);
    let shown: Vec<String> = shown.map(|(name, _)| name.process()).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

/// Returns links to the writers with most bytes, equal ones oldest first. A writer without a span
/// has no link.
pub(super) fn links(origin: &PageOriginEvent) -> impl Iterator<Item = SpanLink> {
    let mut writers: Vec<&PageWriter> = origin.writers.iter().filter(|writer| writer.span.0 != 0).collect();
    writers.sort_by_key(|writer| Reverse(writer.bytes));
    writers.truncate(LINKS_MAX);
    writers.into_iter().filter(|writer| writer.trace.0 != 0).map(|writer| SpanLink {
        trace: writer.trace,
        span: writer.span,
        relation: relation(origin, writer).into(),
    })
}

/// Returns the relation with its evidence, and the age of the data in ms.
fn relation(origin: &PageOriginEvent, writer: &PageWriter) -> String {
    let age = origin.time.since(writer.dirtied).0 / 1_000_000;
    match writer.evidence {
        WriterEvidence::EndedBefore => {
            format!("written_by (rule: the call wrote these bytes of the file, {age} ms before)")
        }
        WriterEvidence::DuringTransfer => {
            "written_by (rule: the call wrote these bytes while the device read them)".into()
        }
        WriterEvidence::UnderWayEarlier => {
            "written_by (rule: the call was writing these bytes when an earlier bio was queued; \
             either may carry them)"
                .into()
        }
        WriterEvidence::UnderWay => "written_by (rule: the call was writing these bytes of the file)".into(),
        WriterEvidence::LoopDevice => {
            format!(
                "written_by (rule: a bio of its loop device wrote these bytes of the file, {age} ms before)"
            )
        }
        WriterEvidence::MappedStore => {
            format!("written_by (rule: its memory mapping made these pages writable, {age} ms before)")
        }
    }
}

fn unattributed_name(why: Unattributed) -> &'static str {
    match why {
        Unattributed::NotRecorded => "no recorded operation wrote them",
        Unattributed::Evicted => "the table of dirty ranges had dropped ranges of this file",
        Unattributed::NotConsecutive => "the pages are not consecutive in the file",
    }
}
