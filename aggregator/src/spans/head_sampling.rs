//! Tags of a trace that head sampling kept.
//!
//! *In*: the ratio of the trace's root. *Out*: on the root, how many roots it represents
//! (`blkkin.sampled.head_one_in`); on each span, OpenTelemetry's threshold as trace state. Zipkin has no
//! field for that and gets it as the tag [`TRACE_STATE_TAG`], the name that OpenTelemetry's collector
//! uses. A trace whose root is not sampled gets neither.

use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::span::{Span, TRACE_STATE_TAG, TagValue};

use crate::trace::{Root, Trace};

/// Adds the tags to the spans of a trace, of which the first is the root's.
#[inline]
pub(super) fn add(trace: &Trace, spans: &mut [Span]) {
    let ratio = ratio(trace);
    if ratio != HeadSampling::ALL {
        add_ratio(ratio, spans);
    }
}

#[cold]
fn add_ratio(ratio: HeadSampling, spans: &mut [Span]) {
    let Some(state) = ratio.trace_state() else { return };
    if let (Some(root), Ok(one_in)) = (spans.first_mut(), ratio.one_in().try_into()) {
        root.tags.push(("blkkin.sampled.head_one_in".into(), TagValue::Number(one_in)));
    }
    for span in spans {
        span.tags.push((TRACE_STATE_TAG.into(), TagValue::Text(state.clone().into())));
    }
}

/// Returns the ratio by which the root was recorded. Calls and submissions alone are sampled.
fn ratio(trace: &Trace) -> HeadSampling {
    match &trace.root {
        Root::Call(call) => call.sampling,
        Root::AsyncIo => trace
            .async_ios
            .iter()
            .find(|io| io.event.span == trace.root_span)
            .map_or(HeadSampling::ALL, |io| io.event.sampling),
        _ => HeadSampling::ALL,
    }
}
