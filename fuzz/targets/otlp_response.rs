//! `ExportTraceServiceResponse` of an OTLP receiver.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_zipkin_export::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    if let Some((spans, why)) = fuzzing::rejected_spans(bytes) {
        assert!(spans > 0 && why.len() <= 3 * bytes.len());
    }
});
