//! Message of a system call's waits.

use super::message;
use crate::call_waits::{CallWaits, LockHolder, LogWrite, LongestWait, WaitKind, WaitSum};
use crate::clock::{DurationNs, MonotonicNs};
use crate::ids::{Pid, SpanId, Tid, TraceId};

/// Writes the waits of a call that was entered at `enter`.
pub(super) fn write(waits: &CallWaits, enter: MonotonicNs) -> message::CallWaits {
    let LongestWait { kind, begin, time, holder } = &waits.longest;
    message::CallWaits {
        kind: waits.sums.iter().map(|sum| sum.kind as u32).collect(),
        time: waits.sums.iter().map(|sum| sum.time.0).collect(),
        count: waits.sums.iter().map(|sum| sum.count).collect(),
        sleeps: waits.sleeps,
        longest_kind: *kind as u32,
        longest_begin: begin.0.wrapping_sub(enter.0),
        longest_time: time.0,
        holder: holder.as_ref().map(|LockHolder { pid, tid, comm }| message::LockHolder {
            pid: pid.0,
            tid: tid.0,
            comm: comm.as_ref().to_owned(),
        }),
        log_write: waits
            .log_write
            .map(|LogWrite { span, root, trace: _ }| message::LogWrite { span: span.0, root: root.0 }),
    }
}

/// Reads the waits of a call that was entered at `enter`. Kinds that this version does not know are
/// skipped; none if the longest wait is of such a kind.
pub(super) fn read(waits: &message::CallWaits, enter: MonotonicNs) -> Option<CallWaits> {
    let sums = waits.kind.iter().zip(&waits.time).zip(&waits.count);
    let sums = sums.filter_map(|((kind, time), count)| {
        let (kind, time) = (WaitKind::from_number(*kind)?, DurationNs(*time));
        Some(WaitSum { kind, time, count: *count })
    });
    Some(CallWaits {
        sums: sums.collect(),
        longest: LongestWait {
            kind: WaitKind::from_number(waits.longest_kind)?,
            begin: MonotonicNs(enter.0.wrapping_add(waits.longest_begin)),
            time: DurationNs(waits.longest_time),
            holder: waits.holder.as_ref().map(|holder| LockHolder {
                pid: Pid(holder.pid),
                tid: Tid(holder.tid),
                comm: holder.comm.as_str().into(),
            }),
        },
        sleeps: waits.sleeps,
        log_write: waits.log_write.map(|message::LogWrite { span, root }| LogWrite {
            span: SpanId(span),
            root: SpanId(root),
            trace: TraceId(0),
        }),
    })
}
