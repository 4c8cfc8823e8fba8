//! What is in flight, to what had not ended.

use blkkin_probe_abi::flight::{Bio, Request};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::{DeviceId, Sector, SpanId};
use blkkin_wire::unended::{BlockLayer, Unended};

use super::moment;
use crate::operations::Operations;

/// A bio.
pub(crate) fn bio(entry: &Bio, operations: &Operations) -> Unended {
    Unended {
        layer: BlockLayer::Bio,
        span: SpanId(entry.span),
        root: SpanId(entry.root),
        begun: MonotonicNs(entry.queue_ns),
        issue: None,
        in_request: entry.carrier.rq != 0 || entry.request != 0,
        device: DeviceId::from_kernel(entry.dev),
        sector: Sector(entry.sector),
        bytes: entry.bytes,
        op: operations.translate(entry.opf),
    }
}

/// The request in which a bio is alone.
pub(crate) fn alone(entry: &Bio, operations: &Operations) -> Option<Unended> {
    let carrier = &entry.carrier;
    (carrier.rq != 0).then(|| Unended {
        layer: BlockLayer::Request,
        span: SpanId(carrier.span),
        begun: MonotonicNs(carrier.start_ns),
        issue: moment(carrier.issue_ns),
        device: DeviceId::from_kernel(carrier.disk),
        sector: Sector(carrier.sector),
        op: operations.translate(carrier.opf),
        ..bio(entry, operations)
    })
}

/// A request that is kept apart from its bios.
pub(crate) fn request(entry: &Request, operations: &Operations) -> Unended {
    Unended {
        layer: BlockLayer::Request,
        span: SpanId(entry.span),
        root: SpanId(entry.root),
        begun: MonotonicNs(entry.start_ns),
        issue: moment(entry.issue_ns),
        in_request: true,
        device: DeviceId::from_kernel(entry.dev),
        sector: Sector(entry.sector),
        bytes: entry.bytes,
        op: operations.translate(entry.opf),
    }
}

#[cfg(test)]
mod tests {
    use blkkin_probe_abi::flight::Carrier;

    use super::*;

    #[test]
    fn a_bio_alone_in_its_request_is_both() {
        let carrier =
            Carrier { rq: 0xff00, span: 2, start_ns: 20, issue_ns: 30, disk: 8 << 20, ..Carrier::default() };
        let entry = Bio { span: 1, queue_ns: 10, bytes: 512, dev: 8 << 20 | 1, carrier, ..Bio::default() };
        let request = alone(&entry, &Operations::default()).expect("a request");
        assert_eq!((request.layer, request.span, request.bytes), (BlockLayer::Request, SpanId(2), 512));
        assert_eq!((request.begun, request.issue), (MonotonicNs(20), Some(MonotonicNs(30))));
        assert_eq!((request.device.minor, bio(&entry, &Operations::default()).device.minor), (0, 1));
        assert!(alone(&Bio { carrier: Carrier::default(), ..entry }, &Operations::default()).is_none());
    }
}
