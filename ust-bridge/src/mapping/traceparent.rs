//! Remote parent in a text: a W3C `traceparent` (Trace Context, section 3.2).
//!
//! *In*: a field's text, which may be truncated. It is a `traceparent` alone, or a query with one
//! in a comment, as OpenTelemetry's SQL commenter adds it (`/*traceparent='00-…-01'*/`). *Out*:
//! trace and span.
//!
//! *Invariant*: a wrong parent is worse than none. Only a comment at the begin or end of a query
//! counts. Elsewhere the same text may be data, and the content after a truncation is unknown.

/// Trace and span of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteParent {
    pub(crate) trace_hi: u64,
    pub(crate) trace_lo: u64,
    pub(crate) span: u64,
}

pub(crate) fn find(text: &str) -> Option<RemoteParent> {
    let text = text.trim();
    let first = || text.strip_prefix("/*")?.split_once("*/").map(|(comment, _)| comment);
    let last = || {
        let before = text.trim_end_matches(|c: char| c == ';' || c.is_whitespace()).strip_suffix("*/")?;
        before.rsplit_once("/*").map(|(_, comment)| comment)
    };
    read(text).or_else(|| in_comment(first()?)).or_else(|| in_comment(last()?))
}

/// Parses `key='value',key='value'`.
fn in_comment(comment: &str) -> Option<RemoteParent> {
    let pairs = comment.split(',').filter_map(|pair| pair.split_once('='));
    let mut named = pairs.filter(|(key, _)| key.trim() == "traceparent");
    read(named.next()?.1.trim().trim_matches(['\'', '"']))
}

fn read(text: &str) -> Option<RemoteParent> {
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let &[version, trace, span, flags, ref more @ ..] = parts.as_slice() else { return None };
    let sized = [version, trace, span, flags].map(str::len) == [2, 32, 16, 2];
    // Later versions may have further parts; `ff` is invalid.
    let known = version != "ff" && (more.is_empty() || version != "00");
    if !sized || !known {
        return None;
    }
    let hex = |digits: &str| {
        let lower = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if lower { u64::from_str_radix(digits, 16).ok() } else { None }
    };
    hex(version).and(hex(flags))?;
    let (trace_hi, trace_lo) = trace.split_at_checked(16)?;
    let remote_parent = RemoteParent { trace_hi: hex(trace_hi)?, trace_lo: hex(trace_lo)?, span: hex(span)? };
    (remote_parent.span != 0 && remote_parent.trace_hi | remote_parent.trace_lo != 0).then_some(remote_parent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const PARENT_SPAN: RemoteParent = RemoteParent {
        trace_hi: 0x4bf9_2f35_77b3_4da6,
        trace_lo: 0xa3ce_929d_0e0e_4736,
        span: 0x00f0_67aa_0ba9_02b7,
    };

    #[test]
    fn found_alone_and_in_the_first_and_last_comment() {
        for text in [
            PARENT.to_owned(),
            format!(" {PARENT} "),
            format!("select 1 /*traceparent='{PARENT}'*/"),
            format!("select 1 /*db_driver='x',traceparent='{PARENT}',tracestate='a%3D1'*/ ;\n"),
            format!("/*traceparent='{PARENT}'*/ select 1, 2 where a = '…"),
            format!("/* a */ select 1 /*traceparent=\"{PARENT}\"*/"),
            PARENT.replace("00-4", "cc-4") + "-more",
        ] {
            assert_eq!(find(&text), Some(PARENT_SPAN), "{text}");
        }
    }

    #[test]
    fn data_and_truncated_text_are_ignored() {
        for text in [
            String::new(),
            format!("select '/*traceparent=''{PARENT}''*/'"),
            format!("select '/*traceparent={PARENT}*/', 2"),
            format!("select 1 /*traceparent='{PARENT}'…"),
            format!("select 1 /*x='traceparent={PARENT}'*/"),
            format!("insert into t values ('{PARENT}')"),
            PARENT.replace("01", "1"),
            PARENT.replace('b', "B"),
            PARENT.replace("00-4", "ff-4"),
            format!("{PARENT}-more"),
            format!("00-{:032x}-00f067aa0ba902b7-01", 0),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01".to_owned(),
            PARENT.replace("4b", "é"),
            // As long as a trace id, and a character lies on its middle.
            PARENT.replace("6a3c", "éé"),
        ] {
            assert_eq!(find(&text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in "[0-9a-f/*'=,;é…-]{0,90}|.*") {
            let _ = find(&text);
            let _ = find(&format!("/*traceparent={text}"));
        }
    }
}
