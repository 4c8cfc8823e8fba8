//! Bios and block requests in flight when tracing ended. The tracer reports them once, at exit.
//! They are not events: they have no end, so they have no time in the stream, and no trace is
//! emitted for them.

use crate::clock::MonotonicNs;
use crate::event::BlockOp;
use crate::ids::{DeviceId, Sector, SpanId};

/// Layer of the block I/O path, from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockLayer {
    /// Bio.
    Bio,
    /// Block request.
    Request,
}

/// A bio or block request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightIo {
    /// Bio or block request.
    pub layer: BlockLayer,
    /// Span id.
    pub span: SpanId,
    /// Root span of its trace.
    pub root: SpanId,
    /// Submission of a bio, allocation of a request.
    pub start: MonotonicNs,
    /// First issue of a request to the driver.
    pub issue: Option<MonotonicNs>,
    /// For a bio: whether it has a request.
    pub in_request: bool,
    /// Device; for a bio possibly a partition.
    pub device: DeviceId,
    /// First sector, relative to the whole disk.
    pub sector: Sector,
    /// Bytes.
    pub bytes: u32,
    /// Op and flags.
    pub op: BlockOp,
}

impl InFlightIo {
    /// Returns whether this is the lowest layer in flight: a request, or a bio without a request.
    pub fn is_lowest(&self) -> bool {
        self.layer == BlockLayer::Request || !self.in_request
    }
}

/// Change of a device since the tracer first saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceChange {
    /// No device has its number, or the device has no disk.
    Gone,
    /// Another disk has its number.
    Replaced,
}

/// A device that was removed while it was traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDevice {
    /// Device number.
    pub device: DeviceId,
    /// Name when the tracer first saw it.
    pub name: Box<str>,
    /// Removed or replaced.
    pub change: DeviceChange,
}

/// State at the end of tracing, apart from the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinalState {
    /// Time at which all probes were detached.
    pub at: MonotonicNs,
    /// Bios and requests in flight at that time, oldest first.
    pub in_flight: Vec<InFlightIo>,
    /// Devices that were removed or replaced.
    pub lost: Vec<LostDevice>,
    /// Names of the devices with I/O in flight.
    pub device_names: Vec<(DeviceId, Box<str>)>,
}
