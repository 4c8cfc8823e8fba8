//! Decoder of `blkkin:together`, an event with several span events, as daemons with earlier builds
//! of `ust-provider` emit it.
//!
//! *In*: the event's words. *Out*: span events, in order.
//!
//! *Invariant*: decoding stops at the first invalid word. Everything before it is used, and the
//! caller learns that the rest is not.
//!
//! # Format
//!
//! The metadata of the trace have the byte order of the words. Each item is a head, whose lowest
//! byte is its type, and the words that follow it.
//!
//! | type | head, from bit | following words |
//! |---|---|---|
//! | 1 name | 8: its number; 16: length in bytes (16 bits) | the bytes, eight per word, the first one lowest |
//! | 2 begin | 8: kind (4 bits); 12: flags (1 `trace_hi` follows, 2 parent follows, 4 `trace_lo` is the span id); 16: name; 24: service; 32: kept per million | span; `trace_lo` unless flag 4; `trace_hi` and parent by their flags |
//! | 3 span | | id of the span of the following items, up to the next begin or span |
//! | 4 number | 8: key | the number |
//! | 5 text | 8: key; 16: value | |
//! | 6 event | 8: name | |
//! | 7 RPC endpoint | 8: flags (1 server, 2 unique, 4 the cookie is in the head); 16: rule; 24: connection; 32: cookie, with flag 4 | cookie, unless flag 4 |
//! | 8 end | 32: status | span |
//! | 9 small number | 8: key; 16: the number (48 bits, signed) | |
//! | 10 ends | 8: count | the ids of that many spans, all without an error |
//!
//! Names, keys, values, rules and connections are numbers of earlier names in the same event. A
//! number may be defined again; the last definition counts.

use std::borrow::Cow;

use crate::span_event::{RpcSide, SpanEvent, SpanKind};

/// Number of strings that an 8-bit number can identify.
const STRINGS_MAX: usize = 256;
/// Maximum length of a string in bytes; longer texts are truncated anyway.
const STRING_BYTES_MAX: usize = 1_024;

/// Strings of one event by their number. The allocations are reused for the next event.
#[derive(Debug, Default)]
pub(crate) struct StringTable {
    /// Strings with a flag that is set if they are of this event.
    entries: Vec<(bool, Vec<u8>)>,
}

impl StringTable {
    fn clear(&mut self) {
        self.entries.iter_mut().for_each(|(known, _)| *known = false);
    }

    fn slot(&mut self, number: usize) -> &mut Vec<u8> {
        if self.entries.len() <= number {
            self.entries.resize_with(number + 1, Default::default);
        }
        let (known, bytes) = &mut self.entries[number];
        *known = true;
        bytes.clear();
        bytes
    }

    fn get(&self, number: u64) -> Option<Cow<'_, str>> {
        let (known, bytes) = self.entries.get(number as usize % STRINGS_MAX)?;
        known.then(|| String::from_utf8_lossy(bytes))
    }
}

/// Decodes the words; `None` if one is invalid. Span events before it were emitted.
pub(crate) fn read(
    mut words: impl Iterator<Item = u64>,
    strings: &mut StringTable,
    out: &mut impl FnMut(SpanEvent<'_>),
) -> Option<()> {
    strings.clear();
    let mut current_span = None;
    while let Some(header) = words.next() {
        let byte = |from: u32| header >> from & 0xff;
        match header & 0xff {
            1 => read_string(header, &mut words, strings)?,
            2 => {
                let flags = byte(12) & 0xf;
                let span = words.next()?;
                let mut optional = |present, default| if present { words.next() } else { Some(default) };
                let trace_lo = optional(flags & 4 == 0, span)?;
                let (trace_hi, parent) = (optional(flags & 1 != 0, 0)?, optional(flags & 2 != 0, 0)?);
                current_span = Some(span);
                out(SpanEvent::Begin {
                    trace_hi,
                    trace_lo,
                    span,
                    parent,
                    kind: span_kind(byte(8) & 0xf),
                    enter: false,
                    sample_rate: (header >> 32).min(1_000_000) as u32,
                    name: strings.get(byte(16))?,
                    service: strings.get(byte(24))?,
                });
            }
            3 => current_span = Some(words.next()?),
            4 => {
                let value = words.next()? as i64;
                out(SpanEvent::Number { span: current_span?, key: strings.get(byte(8))?, value });
            }
            5 => {
                out(SpanEvent::Text {
                    span: current_span?,
                    key: strings.get(byte(8))?,
                    value: strings.get(byte(16))?,
                });
            }
            6 => out(SpanEvent::Event { span: current_span?, name: strings.get(byte(8))? }),
            7 => out(SpanEvent::RpcEndpoint {
                span: current_span?,
                side: if byte(8) & 1 == 0 { RpcSide::Client } else { RpcSide::Server },
                unique: byte(8) & 2 != 0,
                protocol: strings.get(byte(16))?,
                connection: strings.get(byte(24))?,
                cookie: if byte(8) & 4 == 0 { words.next()? } else { header >> 32 },
            }),
            8 => {
                let status = ((header >> 32) as i32).saturating_abs();
                out(SpanEvent::End { span: words.next()?, status });
            }
            // The upper 48 bits, signed.
            9 => out(SpanEvent::Number {
                span: current_span?,
                key: strings.get(byte(8))?,
                value: header as i64 >> 16,
            }),
            10 => {
                for _ in 0..header >> 8 {
                    out(SpanEvent::End { span: words.next()?, status: 0 });
                }
            }
            _ => return None,
        }
    }
    Some(())
}

fn read_string(header: u64, words: &mut impl Iterator<Item = u64>, strings: &mut StringTable) -> Option<()> {
    let length = (header >> 16 & 0xffff) as usize;
    if length > STRING_BYTES_MAX {
        return None;
    }
    let bytes = strings.slot((header >> 8 & 0xff) as usize);
    while bytes.len() < length {
        let eight = words.next()?.to_le_bytes();
        bytes.extend_from_slice(&eight[..eight.len().min(length - bytes.len())]);
    }
    Some(())
}

fn span_kind(number: u64) -> SpanKind {
    match number {
        1 => SpanKind::Server,
        2 => SpanKind::Client,
        _ => SpanKind::Local,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(words: &[u64]) -> (Vec<String>, bool) {
        let mut all = Vec::new();
        let complete = read(words.iter().copied(), &mut StringTable::default(), &mut |event| {
            all.push(format!("{event:?}"));
        });
        (all, complete.is_some())
    }

    /// Strings 0 (`READ`) and 1 (`nbd`).
    const STRINGS: [u64; 4] = [1 | 4 << 16, 0x4441_4552, 1 | 1 << 8 | 3 << 16, 0x64_626e];
    const BEGIN: [u64; 5] = [2 | 1 << 8 | 3 << 12 | 1 << 24 | 500_000 << 32, 0xa, 0xb, 0xc, 0xd];

    #[test]
    fn each_kind_of_entry_is_decoded() {
        let rest = [4, u64::MAX, 3, 0xe, 5 | 1 << 16, 6 | 1 << 8, 7 | 3 << 8 | 1 << 16, 9, 8 | 5 << 32, 0xa];
        let (all, complete) = decode(&[&STRINGS[..], &BEGIN, &rest].concat());
        assert_eq!(
            all,
            [
                "Begin { trace_hi: 12, trace_lo: 11, span: 10, parent: 13, kind: Server, enter: false, \
                 sample_rate: 500000, name: \"READ\", service: \"nbd\" }",
                "Number { span: 10, key: \"READ\", value: -1 }",
                "Text { span: 14, key: \"READ\", value: \"nbd\" }",
                "Event { span: 14, name: \"nbd\" }",
                "RpcEndpoint { span: 14, side: Server, unique: true, protocol: \"nbd\", connection: \"READ\", cookie: 9 }",
                "End { span: 10, status: 5 }",
            ]
        );
        assert!(complete);
    }

    #[test]
    fn short_entries_equal_long_entries() {
        let minimum = -1_i64 << 47;
        let short = [
            2 | 1 << 8 | 6 << 12 | 1 << 24 | 1_000_000 << 32,
            0xa,
            0xd,
            9 | (4096 << 16),
            9 | (minimum as u64) << 16,
            7 | 5 << 8 | 1 << 16 | u64::from(u32::MAX) << 32,
            10 | 2 << 8,
            0xa,
            0xb,
        ];
        let long = [
            2 | 1 << 8 | 2 << 12 | 1 << 24 | 1_000_000 << 32,
            0xa,
            0xa,
            0xd,
            4,
            4096,
            4,
            minimum as u64,
            7 | 1 << 8 | 1 << 16,
            u32::MAX.into(),
            8,
            0xa,
            8,
            0xb,
        ];
        let decode_after_strings = |more: &[u64]| decode(&[&STRINGS[..], more].concat());
        assert_eq!(decode_after_strings(&short), decode_after_strings(&long));
        assert_eq!(decode_after_strings(&short).0.len(), 6);
    }

    #[test]
    fn invalid_word_ends_decoding_after_the_valid_events() {
        let decode_after_strings = |more: &[u64]| decode(&[&STRINGS[..], &BEGIN, more].concat());
        for invalid in [
            &[0][..],
            &[11],
            &[4],
            &[9 | 2 << 8],
            &[10 | 1 << 8],
            &[5 | 2 << 16],
            &[8],
            &[1 | 5 << 16],
            &[1 | 0xffff << 16, 0, 0],
        ] {
            let (all, complete) = decode_after_strings(invalid);
            assert_eq!((all.len(), complete), (1, false), "{invalid:?}");
        }
        assert_eq!(decode(&[4, 1]), (Vec::new(), false), "no current span");
        assert_eq!(decode(&[2, 1, 2]), (Vec::new(), false), "an undefined string");
    }

    #[test]
    fn strings_are_valid_for_one_event_only() {
        let mut strings = StringTable::default();
        let mut nothing = |_: SpanEvent<'_>| {};
        assert!(read(STRINGS.into_iter(), &mut strings, &mut nothing).is_some());
        assert!(read([3, 1, 6].into_iter(), &mut strings, &mut nothing).is_none());
    }

    proptest! {
        #[test]
        fn decoding_any_words_does_not_panic(words in proptest::collection::vec(
            prop_oneof![any::<u64>(), (0_u64..12, any::<u64>()).prop_map(|(tag, rest)| tag | rest << 8),
                        (0_u64..12, 0_u64..40).prop_map(|(tag, length)| tag | length << 16)], 0..64)) {
            let _ = decode(&words);
        }
    }
}
