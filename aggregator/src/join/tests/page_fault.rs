//! Page faults as roots.

use blkkin_wire::event::{ContextSource, FaultEvent, LayerEvent, TraceContext};
use blkkin_wire::ids::{SpanId, TraceId};

use super::local::join;
use crate::fixtures;
use crate::trace::{FragmentKind, Root};

#[test]
fn a_fault_has_its_bio_its_request_and_the_name_of_its_file() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let file = fixtures::file_id(5);
    let fault = FaultEvent { file: Some(file), ..fixtures::fault(1, (10, 20), 1) };
    let out = join(vec![
        LayerEvent::File(fixtures::file(file, 1, "/data")),
        LayerEvent::Fault(fault),
        LayerEvent::Bio(bio),
        LayerEvent::Request(request),
    ]);
    assert_eq!(out.len(), 1);
    assert!(matches!(out[0].root, Root::Fault(_)) && out[0].incomplete.is_empty());
    assert_eq!((&out[0].bios[..], &out[0].requests[..]), (&[bio][..], &[request][..]));
    assert_eq!(out[0].names.file.as_ref().map(|file| &*file.path), Some("/data"));
    assert_eq!(out[0].id, fixtures::SOURCE.trace_id(SpanId(1)));
}

#[test]
fn a_fault_of_a_published_span_belongs_to_its_trace() {
    let context =
        TraceContext { trace: TraceId(7), span: SpanId(8), flags: 1, source: ContextSource::ThreadContext };
    let fault = FaultEvent { context: Some(context.into()), ..fixtures::fault(1, (10, 20), 0) };
    let out = join(vec![LayerEvent::Fault(fault)]);
    assert_eq!((out[0].id, out[0].is_sampled_by_application()), (TraceId(7), true));
}

/// The record of a fault whose end was not seen is written after its bios have ended.
#[test]
fn a_fault_that_is_reported_late_still_has_its_bios() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let fault = FaultEvent {
        time: blkkin_wire::clock::MonotonicNs(500),
        end_seen: false,
        ..fixtures::fault(1, (10, 12), 1)
    };
    let out = join(vec![LayerEvent::Request(request), LayerEvent::Bio(bio), LayerEvent::Fault(fault)]);
    assert_eq!(
        (out.len(), out[0].kind, out[0].end().0, out[0].last_end().0),
        (1, FragmentKind::First, 12, 19)
    );
}
