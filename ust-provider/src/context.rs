//! What names a span outside its process: made by [`Span::context`](crate::Span::context), carried in a message in one of
//! two forms, and continued by [`Span::continued`](crate::Span::continued) at the other end.
//!
//! * W3C `traceparent` (Trace Context, section 3.2): 55 characters, a trace id of 128 bits, and whether it is sampled.
//! * blkin's packed trace info: 24 bytes, trace, span and parent as big-endian 64-bit. It has no place for the upper half
//!   of a trace id. So the traces that begin here have 0 there (as Zipkin's and blkin's own do), and one that came with
//!   an upper half has no packed form: half of a trace id would be another trace.
//!
//! Nothing that comes from outside is believed further than its form: what is malformed is `None`.

/// The ids of a span. All zero: none, which is what a span has while nobody traces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Context {
    /// The upper half of the trace's id; 0 in traces that begin in this crate.
    pub trace_hi: u64,
    /// The lower half of the trace's id.
    pub trace_lo: u64,
    /// The span's id; 0: none.
    pub span: u64,
    /// The id of the span that this one is a child of; 0: none, or not told by the form that it came in.
    pub parent: u64,
    /// Whether somebody records this trace.
    pub sampled: bool,
}

impl Context {
    /// No span.
    pub const NONE: Self = Self { trace_hi: 0, trace_lo: 0, span: 0, parent: 0, sampled: false };

    /// Whether this names no span.
    pub const fn is_none(&self) -> bool {
        self.span == 0 || (self.trace_hi == 0 && self.trace_lo == 0)
    }

    /// `00-<trace id>-<span id>-<flags>`; none where there is no span.
    pub fn to_traceparent(&self) -> Option<String> {
        if self.is_none() {
            return None;
        }
        let flags = u8::from(self.sampled);
        Some(format!("00-{:016x}{:016x}-{:016x}-{flags:02x}", self.trace_hi, self.trace_lo, self.span))
    }

    /// Reads a `traceparent`: of version 00, or of a later one by the rules that the standard gives for those.
    pub fn from_traceparent(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let known = bytes.get(..55)?;
        let later = match bytes.len() {
            55 => true,
            _ => !known.starts_with(b"00") && bytes[55] == b'-',
        };
        let dashes = [2, 35, 52].iter().all(|&place| known[place] == b'-');
        if !later || !dashes || hex(&known[..2])? == 0xff {
            return None;
        }
        let flags = hex(&known[53..55])?;
        let context = Self {
            trace_hi: hex(&known[3..19])?,
            trace_lo: hex(&known[19..35])?,
            span: hex(&known[36..52])?,
            parent: 0,
            sampled: flags & 1 != 0,
        };
        (!context.is_none()).then_some(context)
    }

    /// blkin's packed trace info; none where there is no span, where nobody records it (the form cannot say so), and
    /// where the trace's id does not fit.
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

    /// Reads blkin's packed trace info; none where it names no span.
    pub fn from_blkin(bytes: &[u8; 24]) -> Option<Self> {
        let word = |place: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[place..place + 8]);
            u64::from_be_bytes(eight)
        };
        let context = Self { trace_hi: 0, trace_lo: word(0), span: word(8), parent: word(16), sampled: true };
        (!context.is_none()).then_some(context)
    }
}

/// The value of lower-case hexadecimal digits, 16 at most.
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
    fn a_traceparent_comes_back_as_it_was() {
        let context = Context::from_traceparent(PARENT).unwrap();
        assert_eq!(context.trace_hi, 0x4bf9_2f35_77b3_4da6);
        assert_eq!(context.trace_lo, 0xa3ce_929d_0e0e_4736);
        assert_eq!(context.span, 0x00f0_67aa_0ba9_02b7);
        assert!(context.sampled);
        assert_eq!(context.to_traceparent().as_deref(), Some(PARENT));
        let not_sampled = PARENT.replace("-01", "-00");
        assert!(!Context::from_traceparent(&not_sampled).unwrap().sampled);
        // The other flags are nobody's business here (section 3.2.2.5: set to zero by who writes).
        assert!(Context::from_traceparent(&PARENT.replace("-01", "-03")).unwrap().sampled);
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
            assert_eq!(Context::from_traceparent(text), None, "{text}");
        }
        // A later version may say more behind a dash, and what version 00 has is read (section 3.2.4).
        let later = PARENT.replace("00-4b", "01-4b");
        assert!(Context::from_traceparent(&format!("{later}-what-comes")).is_some());
        assert!(Context::from_traceparent(&format!("{later}.what-comes")).is_none());
    }

    #[test]
    fn packed_trace_info_is_three_big_endian_words() {
        let context = Context { trace_hi: 0, trace_lo: 1, span: 0x0203, parent: u64::MAX, sampled: true };
        let bytes = context.to_blkin().unwrap();
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 3]);
        assert_eq!(bytes[16..], [0xff; 8]);
        assert_eq!(Context::from_blkin(&bytes), Some(context));
        assert_eq!(Context::from_blkin(&[0; 24]), None);
        assert_eq!(Context { trace_hi: 9, ..context }.to_blkin(), None, "half of an id is another trace");
        assert_eq!(Context { sampled: false, ..context }.to_blkin(), None);
        assert_eq!(Context::NONE.to_blkin(), None);
    }
}
