//! What had begun and not ended when tracing did: said once, at the end, by whoever has it in hand. It is no event: it
//! has no end, so no time in the stream, and no trace is given out for it.

use crate::clock::MonotonicNs;
use crate::event::BlockOp;
use crate::ids::{DeviceId, Sector, SpanId};

/// Part of a request's way, from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockLayer {
    /// A bio.
    Bio,
    /// A request.
    Request,
}

/// A bio or request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unended {
    /// Which of them.
    pub layer: BlockLayer,
    /// Its span.
    pub span: SpanId,
    /// Where its trace began.
    pub root: SpanId,
    /// Submission of a bio, allocation of a request.
    pub begun: MonotonicNs,
    /// First issue of a request to the driver.
    pub issue: Option<MonotonicNs>,
    /// Of a bio: a request has been taken for it.
    pub in_request: bool,
    /// Device; of a bio maybe a partition.
    pub device: DeviceId,
    /// First sector, relative to the whole disk.
    pub sector: Sector,
    /// Bytes.
    pub bytes: u32,
    /// Operation and flags.
    pub op: BlockOp,
}

impl Unended {
    /// Whether it says all there is to say: a bio that is in a request is told by that.
    pub fn is_lowest(&self) -> bool {
        self.layer == BlockLayer::Request || !self.in_request
    }
}

/// What became of a device that was met, where it is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// There is no device of its number any more, or nothing behind it.
    Gone,
    /// Another disk has its number.
    Replaced,
}

/// A device that was taken away while it was traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDevice {
    /// Its number.
    pub device: DeviceId,
    /// Its name when it was met.
    pub name: Box<str>,
    /// What became of it.
    pub fate: Fate,
}

/// What there is to say when tracing has ended, besides the books.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtEnd {
    /// When nothing was attached any more.
    pub at: MonotonicNs,
    /// What had not ended then, the oldest first.
    pub in_flight: Vec<Unended>,
    /// Devices that were met and are not what they were.
    pub lost: Vec<LostDevice>,
    /// The names of those that have something in flight.
    pub names: Vec<(DeviceId, Box<str>)>,
}
