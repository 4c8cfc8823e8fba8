//! Line below a bio: the file of its pages, their writers, and the age of the data.
//!
//! *In*: the origin of a bio's pages. *Out*: one sentence. *Invariant*: it names the operations that
//! the origin names, or the reason why there is none. A read has no line: its file is that of the
//! call.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::TaskRef;
use blkkin_wire::page_origin::{PageKind, PageOriginEvent, PageWriter, Unattributed, WriterEvidence};

use crate::collect::written_by::UNKNOWN_PROGRAM;
use crate::text::line::sanitize;
use crate::text::units;

/// Formats an origin: `write-back of FILE @8,192, written 31.2 s ago by dd (pid 123) and 2 others,
/// reason periodic`.
pub(super) fn sentence(trace: &Trace, origin: &PageOriginEvent) -> String {
    let mut parts = vec![content(trace, origin)];
    if matches!(origin.kind, PageKind::File | PageKind::Device) {
        parts.extend(writers(trace, origin));
        let some = origin.bytes_unattributed > 0 && !origin.writers.is_empty();
        parts.extend(
            some.then(|| {
                format!("{} without a known writer", units::bytes(origin.bytes_unattributed.into()))
            }),
        );
    }
    parts.extend(origin.reason.map(|reason| format!("reason {}", reason.name())));
    parts.join(", ")
}

fn content(trace: &Trace, origin: &PageOriginEvent) -> String {
    let mut offset = units::count(origin.offset);
    if let Some(more) = origin.parts.len().checked_sub(1).filter(|more| *more > 0) {
        offset += &format!(
            " and {} more {}",
            units::count(more as u64),
            if more == 1 { "place" } else { "places" }
        );
    }
    match (origin.kind, &origin.file) {
        (PageKind::File, Some(file)) => {
            format!("write-back of {} @{offset}", sanitize(&trace.origin_names.path(file)))
        }
        (PageKind::File, None) => "write-back of a file".to_owned(),
        (PageKind::Device, _) => format!("write-back of the device's pages @{offset}"),
        (PageKind::Metadata, _) => "metadata of the file system".to_owned(),
        (PageKind::Log, _) => "log of the file system".to_owned(),
        (PageKind::Swap, _) => "swapped memory".to_owned(),
    }
}

/// Returns the writers of the pages; none for metadata of ext4, which no call writes itself.
fn writers(trace: &Trace, origin: &PageOriginEvent) -> Option<String> {
    if origin.writers.is_empty() {
        return (origin.kind == PageKind::File).then(|| without_writer(origin.unattributed).to_owned());
    }
    let first =
        origin.writers.iter().max_by_key(|writer| (writer.bytes, std::cmp::Reverse(writer.dirtied)))?;
    let (id, name) = identity(trace, first);
    let mut others: Vec<Identity> = origin.writers.iter().map(|writer| identity(trace, writer).0).collect();
    others.sort_unstable();
    others.dedup();
    let others = match others.len() - 1 {
        0 => String::new(),
        1 => " and another one".to_owned(),
        number => format!(" and {} others", units::count(number as u64)),
    };
    let own = || origin.writers.iter().filter(|writer| identity(trace, writer).0 == id);
    let ended = own().filter(|writer| writer.evidence.has_age());
    let when = ended.map(|writer| writer.dirtied).min().map_or_else(
        || "being written".to_owned(),
        |dirtied: MonotonicNs| format!("written {} ago", units::duration(origin.time.since(dirtied))),
    );
    let all = |evidence| own().all(|writer| writer.evidence == evidence);
    let how = match () {
        () if all(WriterEvidence::MappedStore) => " through a mapping",
        () if all(WriterEvidence::LoopDevice) => " through a loop device",
        () => "",
    };
    Some(format!("{when}{how} by {name}{others}"))
}

/// A writing process, or its task if the process is unknown.
type Identity = (Option<u32>, Option<TaskRef>);

/// Returns the process of a writer, and its name.
fn identity(trace: &Trace, writer: &PageWriter) -> (Identity, String) {
    match trace.origin_names.writers.get(&writer.task) {
        Some(name) => ((Some(name.task.pid.0), None), sanitize(&name.process())),
        None => ((None, Some(writer.task)), UNKNOWN_PROGRAM.to_owned()),
    }
}

fn without_writer(why: Option<Unattributed>) -> &'static str {
    match why {
        Some(Unattributed::NotRecorded) | None => "its write was not recorded",
        Some(Unattributed::Evicted) => "its write is no longer known",
        Some(Unattributed::NotConsecutive) => "its pages are not consecutive",
    }
}
