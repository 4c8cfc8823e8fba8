//! Entry for the fuzz targets in `fuzz/`, which reach a decoder that is not public.

/// Reads the number of rejected spans in an `ExportTraceServiceResponse`, and the reason.
pub fn rejected_spans(response: &[u8]) -> Option<(u64, String)> {
    crate::otlp::rejected_spans(response)
}
