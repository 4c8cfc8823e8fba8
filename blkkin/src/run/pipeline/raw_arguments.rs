//! `--detail 2`: raw system call arguments from the registers, next to the decoded ones.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::span::{Span, TagValue};

/// Tag names, one per register: system calls have at most six arguments.
const NAMES: [&str; 6] =
    ["blkkin.arg.0", "blkkin.arg.1", "blkkin.arg.2", "blkkin.arg.3", "blkkin.arg.4", "blkkin.arg.5"];

/// Adds a tag for each argument of the system call to its span. Further registers hold stale
/// values.
pub(super) fn add_tags(trace: &Trace, spans: &mut [Span]) {
    let Some(call) = trace.call() else { return };
    let Some(span) = spans.iter_mut().find(|span| span.id == call.span) else { return };
    let count = call.call.spec().args.len();
    for (name, value) in NAMES.iter().zip(call.args).take(count) {
        span.tags.push(((*name).into(), TagValue::Text(format!("{value:#x}").into())));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use blkkin_aggregator::spans;
    use blkkin_aggregator::trace::Root;

    #[test]
    fn each_syscall_argument_becomes_a_tag() {
        let mut trace = crate::filter::post_filter::tests::write(Some("/srv/db"));
        let Root::Call(call) = &mut trace.root else { unreachable!() };
        call.args = [3, 0xdead_0000, 4096, 7, 8, 9];
        let mut spans = spans::spans_of(&trace);
        add_tags(&trace, &mut spans);
        let tags: Vec<_> = spans.iter().flat_map(|span| &span.tags).collect();
        let value = |name| tags.iter().find(|(tag, _)| tag == name).map(|(_, value)| value.clone());
        assert_eq!(value("blkkin.arg.1"), Some(TagValue::Text("0xdead0000".into())));
        assert_eq!(value("blkkin.arg.2"), Some(TagValue::Text("0x1000".into())));
        assert_eq!(value("blkkin.arg.3"), None, "write has three arguments");
    }
}
