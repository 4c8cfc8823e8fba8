//! Causes of recorded bytes.
//!
//! *In*: a trace, and a bio of it. *Out*: the bio's bytes by cause.
//!
//! *Invariant*: each byte has one cause. The root decides, if it is a call or a commit: it submitted
//! the bio. Only for a bio of the kernel's own the origin of its pages decides, byte by
//! byte.
//!
//! *Rejected*: the writers as the cause of a bio that an fsync submitted. The fsync explains it, and
//! its bytes would have two causes.

use blkkin_aggregator::trace::page_origins::OriginIndex;
use blkkin_aggregator::trace::{Root, Trace};
pub use blkkin_wire::cause::{BytesByCause, Cause};
pub(crate) use blkkin_wire::cause::{one, scaled};

use blkkin_wire::cause::split_by_origin;
use blkkin_wire::event::BioEvent;

use super::kernel::first_op;

/// Causes of the bytes of one trace.
pub(crate) struct Causes<'a> {
    /// Cause of a bio whose pages have no known origin.
    pub(crate) of_root: Cause,
    /// True if the root is the cause of all bytes.
    root_decides: bool,
    origins: OriginIndex<'a>,
    excludes_writers: bool,
}

impl<'a> Causes<'a> {
    /// Creates the causes of a trace. `excludes_writers`: see
    /// [`ReportConfig`](crate::ReportConfig).
    pub(crate) fn of(trace: &'a Trace, excludes_writers: bool) -> Self {
        let of_root = match &trace.root {
            Root::Call(_) | Root::AsyncIo | Root::DaemonSpan(_) => Cause::Call,
            Root::Fault(_) => Cause::Fault,
            Root::Commit(_) => Cause::Journal,
            Root::Kernel if trace.bios.first().is_some_and(|bio| bio.of_other_program) => {
                Cause::OtherPrograms
            }
            Root::Kernel => first_op(trace).map_or(Cause::Unknown, |(op, _)| Cause::of_kernel(op)),
            Root::Missing => Cause::Unknown,
        };
        let root_decides = !matches!(trace.root, Root::Kernel | Root::Missing);
        let origins = if root_decides { OriginIndex::default() } else { OriginIndex::of(trace) };
        Causes { of_root, root_decides, origins, excludes_writers }
    }

    /// Returns `bytes` of a bio by cause.
    pub(crate) fn split(&self, bio: &BioEvent, bytes: u64) -> BytesByCause {
        let origin = if self.root_decides { None } else { self.origins.of_data(bio) };
        match origin.filter(|_| bio.op.is_write()) {
            Some(origin) => split_by_origin(origin, bytes, self.excludes_writers || bio.of_other_program),
            None => one(self.of_root, bytes),
        }
    }
}
