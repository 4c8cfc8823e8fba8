//! Span contexts, which name a span outside its process.
//!
//! *In*: [`Span::context`](crate::Span::context), or one of two wire formats. *Out*: the other
//! direction, for [`Span::continued`](crate::Span::continued) in the server.
//!
//! * W3C `traceparent` (Trace Context, section 3.2): 55 characters with a trace id of 128 bits,
//!   span id and sampled flag.
//! * blkin's packed trace info: 24 bytes with trace, span and parent as big-endian 64-bit integers.
//!   It has no place for the upper half of a trace id. Traces that begin in this crate have 0
//!   there, as those of Zipkin and blkin. A trace with an upper half has no packed form, because
//!   half of a trace id would be another trace.
//!
//! *Invariant*: input from outside is untrusted, and malformed input is `None`.

/// Ids of a span. All zero ([`SpanContext::NONE`]) while no session records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SpanContext {
    /// Upper half of the trace id; 0 in traces that begin in this crate.
    pub trace_hi: u64,
    /// Lower half of the trace id.
    pub trace_lo: u64,
    /// Span id; 0 for none.
    pub span: u64,
    /// Id of the parent span; 0 if there is none or the wire format does not have it.
    pub parent: u64,
    /// Sampled flag: the trace is recorded.
    pub sampled: bool,
}

impl SpanContext {
    /// Context of no span.
    pub const NONE: Self = Self { trace_hi: 0, trace_lo: 0, span: 0, parent: 0, sampled: false };

    /// Returns whether this names no span.
    pub const fn is_none(&self) -> bool {
        self.span == 0 || (self.trace_hi == 0 && self.trace_lo == 0)
    }

    /// Encodes it as `00-<trace id>-<span id>-<flags>`. None if it names no span.
    pub fn to_traceparent(&self) -> Option<String> {
        if self.is_none() {
            return None;
        }
        let flags = u8::from(self.sampled);
        Some(format!("00-{:016x}{:016x}-{:016x}-{flags:02x}", self.trace_hi, self.trace_lo, self.span))
    }

    /// Decodes a `traceparent` of version 00, or of a later version by the rules of the standard.
    pub fn from_traceparent(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let head = bytes.get(..55)?;
        let has_valid_length = match bytes.len() {
            55 => true,
            _ => !head.starts_with(b"00") && bytes[55] == b'-',
        };
        let dashes = [2, 35, 52].iter().all(|&index| head[index] == b'-');
        if !has_valid_length || !dashes || hex(&head[..2])? == 0xff {
            return None;
        }
        let flags = hex(&head[53..55])?;
        let context = Self {
            trace_hi: hex(&head[3..19])?,
            trace_lo: hex(&head[19..35])?,
            span: hex(&head[36..52])?,
            parent: 0,
            sampled: flags & 1 != 0,
        };
        (!context.is_none()).then_some(context)
    }

    /// Encodes it as blkin's packed trace info. None if it names no span, is not sampled (the
    /// format has no flag), or has a trace id of more than 64 bits.
    pub fn to_blkin(&self) -> Option<[u8; 24]> {
        if self.is_none() || !self.sampled || self.trace_hi != 0 {
            return None;
        }
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.trace_lo.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.span.to_be_bytes());
        bytes[16..].copy_from_slice(&self.parent.to_be_bytes());
        Some(bytes)
    }

    /// Decodes blkin's packed trace info. None if it names no span.
    pub fn from_blkin(bytes: &[u8; 24]) -> Option<Self> {
        let word = |offset: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[offset..offset + 8]);
            u64::from_be_bytes(eight)
        };
        let context = Self { trace_hi: 0, trace_lo: word(0), span: word(8), parent: word(16), sampled: true };
        (!context.is_none()).then_some(context)
    }
}

/// Parses up to 16 lower-case hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |value, &digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_round_trips() {
        let context = SpanContext::from_traceparent(PARENT).unwrap();
        assert_eq!(context.trace_hi, 0x4bf9_2f35_77b3_4da6);
        assert_eq!(context.trace_lo, 0xa3ce_929d_0e0e_4736);
        assert_eq!(context.span, 0x00f0_67aa_0ba9_02b7);
        assert!(context.sampled);
        assert_eq!(context.to_traceparent().as_deref(), Some(PARENT));
        let not_sampled = PARENT.replace("-01", "-00");
        assert!(!SpanContext::from_traceparent(&not_sampled).unwrap().sampled);
        // Other flags are ignored (section 3.2.2.5: a writer sets them to zero).
        assert!(SpanContext::from_traceparent(&PARENT.replace("-01", "-03")).unwrap().sampled);
    }

    #[test]
    fn a_malformed_traceparent_is_none() {
        for text in [
            "",
            "00",
            &PARENT[..54],
            &format!("{PARENT}0"),
            &format!("{PARENT}-more"),
            &PARENT.to_uppercase(),
            &PARENT.replacen('-', "_", 1),
            &PARENT.replace("00-4b", "ff-4b"),
            &PARENT.replace("00f067aa0ba902b7", "0000000000000000"),
            &PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &PARENT.replace("b7-01", "b7-0g"),
            &PARENT.replace("4bf92f", "4bf92é"),
        ] {
            assert_eq!(SpanContext::from_traceparent(text), None, "{text}");
        }
        // A later version may have more fields after a dash. The fields of version 00 are decoded
        // (section 3.2.4).
        let later = PARENT.replace("00-4b", "01-4b");
        assert!(SpanContext::from_traceparent(&format!("{later}-more")).is_some());
        assert!(SpanContext::from_traceparent(&format!("{later}.more")).is_none());
    }

    #[test]
    fn packed_trace_info_is_three_big_endian_words() {
        let context = SpanContext { trace_hi: 0, trace_lo: 1, span: 0x0203, parent: u64::MAX, sampled: true };
        let bytes = context.to_blkin().unwrap();
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 3]);
        assert_eq!(bytes[16..], [0xff; 8]);
        assert_eq!(SpanContext::from_blkin(&bytes), Some(context));
        assert_eq!(SpanContext::from_blkin(&[0; 24]), None);
        assert_eq!(SpanContext { trace_hi: 9, ..context }.to_blkin(), None, "half of an id is another trace");
        assert_eq!(SpanContext { sampled: false, ..context }.to_blkin(), None);
        assert_eq!(SpanContext::NONE.to_blkin(), None);
    }
}
