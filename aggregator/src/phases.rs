//! The phases of a request's life: in the plug, in the scheduler, at the device.
//!
//! ```text
//! start ─── plug ──► insert ─── scheduler ──► issue ─── device ──► complete
//! ```
//!
//! *In*: a [`RequestEvent`]. *Out*: how long each phase took; none where there was no such phase. *Invariant*: plug and
//! scheduler lie in the queue's time, one after the other, and do not overlap.
//!
//! - **queue**: from the allocation to the issue, whatever it was spent on.
//! - **plug**: a task that plugs (`blk_start_plug`) keeps its requests to itself until it has asked for all that it
//!   wants, so that they can be merged and go out together. Until the request is inserted, or where nothing sorts
//!   requests until it is issued. What a request waits for besides in that time (a tag of the driver's) is not told apart.
//! - **scheduler**: from its insertion to its issue. A device without a scheduler (`none`) has insertions too when it is
//!   busy: into the software queue, where a request waits for a tag of the driver's.
//! - **device**: from the issue to the completion. A request that was put back (*requeued*) counts as with the device
//!   from its first issue on.
//!
//! A request that asked for a flush was issued when the flush that serves it was, and is not plugged: of it there are
//! queue and device only.

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::RequestEvent;

/// Since when a request was with the device: its issue, or that of the flush that served it. One that was never issued
/// never was.
pub fn at_device(request: &RequestEvent) -> MonotonicNs {
    request.issue.unwrap_or(request.complete)
}

/// How long it waited for its issue, or for that of the flush that served it; none if nothing was issued for it.
pub fn queue(request: &RequestEvent) -> Option<DurationNs> {
    request.issue.map(|issue| issue.since(request.start))
}

/// How much of that in its task's plug.
pub fn plug(request: &RequestEvent) -> Option<DurationNs> {
    let end = request.insert.or(request.issue).filter(|_| request.plugged)?;
    Some(end.since(request.start))
}

/// How much of it in the scheduler, or in the software queue of a device without one.
pub fn scheduler(request: &RequestEvent) -> Option<DurationNs> {
    Some(request.issue?.since(request.insert?))
}

/// How long it was with the device; none if nothing was issued for it.
pub fn device(request: &RequestEvent) -> Option<DurationNs> {
    request.issue.map(|issue| request.complete.since(issue))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::tests::make;

    fn phases(plugged: bool, insert: Option<u64>, issue: Option<u64>) -> [Option<u64>; 4] {
        let (_, request) = make::direct(1, 2, 3, (10, 100));
        let [insert, issue] = [insert, issue].map(|time| time.map(MonotonicNs));
        let request = RequestEvent { plugged, insert, issue, ..request };
        [queue, plug, scheduler, device].map(|phase| phase(&request).map(|time| time.0))
    }

    #[test]
    fn plug_and_scheduler_fill_the_queue_of_a_request_that_was_in_both() {
        assert_eq!(phases(true, Some(30), Some(60)), [Some(50), Some(20), Some(30), Some(40)]);
    }

    #[test]
    fn a_phase_that_was_not_has_no_time() {
        assert_eq!(phases(true, None, Some(60)), [Some(50), Some(50), None, Some(40)]);
        assert_eq!(phases(false, Some(30), Some(60)), [Some(50), None, Some(30), Some(40)]);
        assert_eq!(phases(false, None, None), [None; 4]);
    }
}
