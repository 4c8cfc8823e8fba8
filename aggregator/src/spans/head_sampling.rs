//! Tags of a trace that head sampling kept.
//!
//! *In*: the ratio of the trace's root, and the spans that were recorded with it. *Out*: on the root, how
//! many roots it represents (`blkkin.sampled.head_one_in`), or why each such root is kept
//! (`blkkin.sampled.head_rule`); on each span, OpenTelemetry's threshold as trace
//! state. Zipkin has no field for that and gets it as the tag [`TRACE_STATE_TAG`], the name that
//! OpenTelemetry's collector uses.
//!
//! *No threshold* has a trace whose own id is below it: a submission of io_uring that is a root although its
//! call decided (`--detail 0`). Commits that a call waited for have neither tag: all of them are recorded.

use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::span::{Span, TRACE_STATE_TAG, TagValue};

/// Adds the tags to the spans of a trace, of which the first is the root's.
#[inline]
pub(super) fn add(ratio: HeadSampling, spans: &mut [Span]) {
    if ratio != HeadSampling::ALL {
        add_ratio(ratio, spans);
    }
}

#[cold]
fn add_ratio(ratio: HeadSampling, spans: &mut [Span]) {
    let Some(root) = spans.first_mut() else { return };
    match (ratio.kept_for(), ratio.one_in().try_into()) {
        (Some(reason), _) => {
            root.tags.push(("blkkin.sampled.head_rule".into(), TagValue::Text(reason.name().into())));
        }
        (None, Ok(one_in)) => root.tags.push(("blkkin.sampled.head_one_in".into(), TagValue::Number(one_in))),
        (None, Err(_)) => {}
    }
    let Some(state) = ratio.trace_state().filter(|_| ratio.keeps(root.trace)) else { return };
    for span in spans {
        span.tags.push((TRACE_STATE_TAG.into(), TagValue::Text(state.clone().into())));
    }
}
