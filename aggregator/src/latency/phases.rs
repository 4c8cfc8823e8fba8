//! Phases of a block request: in the plug, in the scheduler, at the device.
//!
//! ```text
//! start ─── plug ──► insert ─── scheduler ──► issue ─── device ──► complete
//! ```
//!
//! *In*: a [`RequestEvent`]. *Out*: the duration of each phase, or none if the request had no such
//! phase.
//!
//! *Invariant*: plug and scheduler are within the queue time, one after the other, and do not
//! overlap.
//!
//! - **queue**: from the allocation to the issue, whatever it was spent on.
//! - **plug**: a task that plugs (`blk_start_plug`) retains its requests until it has submitted all
//!   of them, so that they can be merged and issued together. The phase ends when the request is
//!   inserted or, without a scheduler, when it is issued. Other waits in that time (for a driver's
//!   tag) are not distinguished.
//! - **scheduler**: from the insertion to the issue. A device without a scheduler (`none`) has
//!   insertions too when it is busy: into the software queue, where a request waits for a driver's
//!   tag.
//! - **device**: from the issue to the completion. A requeued request counts as with the device
//!   from its first issue on.
//!
//! A request that needs a flush has the issue of the flush that serves it, and is not plugged. It
//! has only queue and device.

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::RequestEvent;

/// Returns the time since which a request was with the device: its issue, or that of the flush that
/// served it. For a request that was never issued this is its completion.
pub fn at_device(request: &RequestEvent) -> MonotonicNs {
    request.issue.unwrap_or(request.complete)
}

/// Returns the time until its issue, or that of the flush that served it. None if nothing was
/// issued for it.
pub fn queue(request: &RequestEvent) -> Option<DurationNs> {
    request.issue.map(|issue| issue.since(request.start))
}

/// Returns the part of the queue time in its task's plug.
pub fn plug(request: &RequestEvent) -> Option<DurationNs> {
    let end = request.insert.or(request.issue).filter(|_| request.plugged)?;
    Some(end.since(request.start))
}

/// Returns the part of the queue time in the scheduler, or in the software queue of a device
/// without one.
pub fn scheduler(request: &RequestEvent) -> Option<DurationNs> {
    Some(request.issue?.since(request.insert?))
}

/// Returns the time with the device. None if nothing was issued for it.
pub fn device(request: &RequestEvent) -> Option<DurationNs> {
    request.issue.map(|issue| request.complete.since(issue))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn phases(plugged: bool, insert: Option<u64>, issue: Option<u64>) -> [Option<u64>; 4] {
        let (_, request) = fixtures::bio_and_request(1, 2, 3, (10, 100));
        let [insert, issue] = [insert, issue].map(|time| time.map(MonotonicNs));
        let request = RequestEvent { plugged, insert, issue, ..request };
        [queue, plug, scheduler, device].map(|phase| phase(&request).map(|time| time.0))
    }

    #[test]
    fn plug_and_scheduler_time_add_up_to_queue_time() {
        assert_eq!(phases(true, Some(30), Some(60)), [Some(50), Some(20), Some(30), Some(40)]);
    }

    #[test]
    fn a_skipped_phase_has_no_time() {
        assert_eq!(phases(true, None, Some(60)), [Some(50), Some(50), None, Some(40)]);
        assert_eq!(phases(false, Some(30), Some(60)), [Some(50), None, Some(30), Some(40)]);
        assert_eq!(phases(false, None, None), [None; 4]);
    }
}
