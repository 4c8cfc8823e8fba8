//! `ExportTraceServiceResponse` of an OTLP receiver.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_span_encoding::otlp;

fuzz_target!(|bytes: &[u8]| {
    if let Some((spans, why)) = otlp::rejected_spans(bytes) {
        assert!(spans > 0 && why.len() <= 3 * bytes.len());
    }
});
