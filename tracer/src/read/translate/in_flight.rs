//! Conversion of in-flight table entries to [`InFlightIo`]s.

use blkkin_probe_abi::in_flight::{Bio, Request};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::{DeviceId, Sector, SpanId};
use blkkin_wire::in_flight::{BlockLayer, InFlightIo};

use super::nonzero_time;
use crate::attach::req_op::ReqOpTable;

/// Converts a bio.
pub(crate) fn bio(entry: &Bio, operations: &ReqOpTable) -> InFlightIo {
    InFlightIo {
        layer: BlockLayer::Bio,
        span: SpanId(entry.span),
        root: SpanId(entry.root),
        start: MonotonicNs(entry.queue_ns),
        issue: None,
        in_request: entry.request_part.rq != 0 || entry.request != 0,
        device: DeviceId::from_kernel(entry.dev),
        sector: Sector(entry.sector),
        bytes: entry.bytes,
        op: operations.translate(entry.opf),
    }
}

/// Converts the request of a bio that is alone in it.
pub(crate) fn single_bio_request(entry: &Bio, operations: &ReqOpTable) -> Option<InFlightIo> {
    let request_part = &entry.request_part;
    (request_part.rq != 0).then(|| InFlightIo {
        layer: BlockLayer::Request,
        span: SpanId(request_part.span),
        start: MonotonicNs(request_part.start_ns),
        issue: nonzero_time(request_part.issue_ns),
        device: DeviceId::from_kernel(request_part.disk),
        sector: Sector(request_part.sector),
        op: operations.translate(request_part.opf),
        ..bio(entry, operations)
    })
}

/// Converts a request that has an entry of its own.
pub(crate) fn request(entry: &Request, operations: &ReqOpTable) -> InFlightIo {
    InFlightIo {
        layer: BlockLayer::Request,
        span: SpanId(entry.span),
        root: SpanId(entry.root),
        start: MonotonicNs(entry.start_ns),
        issue: nonzero_time(entry.issue_ns),
        in_request: true,
        device: DeviceId::from_kernel(entry.dev),
        sector: Sector(entry.sector),
        bytes: entry.bytes,
        op: operations.translate(entry.opf),
    }
}

#[cfg(test)]
mod tests {
    use blkkin_probe_abi::in_flight::RequestPart;

    use super::*;

    #[test]
    fn single_bio_request_yields_bio_and_request() {
        let request_part = RequestPart {
            rq: 0xff00,
            span: 2,
            start_ns: 20,
            issue_ns: 30,
            disk: 8 << 20,
            ..RequestPart::default()
        };
        let entry =
            Bio { span: 1, queue_ns: 10, bytes: 512, dev: 8 << 20 | 1, request_part, ..Bio::default() };
        let request = single_bio_request(&entry, &ReqOpTable::default()).expect("a request");
        assert_eq!((request.layer, request.span, request.bytes), (BlockLayer::Request, SpanId(2), 512));
        assert_eq!((request.start, request.issue), (MonotonicNs(20), Some(MonotonicNs(30))));
        assert_eq!((request.device.minor, bio(&entry, &ReqOpTable::default()).device.minor), (0, 1));
        assert!(
            single_bio_request(
                &Bio { request_part: RequestPart::default(), ..entry },
                &ReqOpTable::default()
            )
            .is_none()
        );
    }
}
