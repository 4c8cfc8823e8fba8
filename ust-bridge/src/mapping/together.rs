//! What several things that were said in one event (`blkkin:together`) are: ust-provider's src/batch.rs has the form.
//!
//! *In*: the event's words. *Out*: facts, in their order. *Invariant*: words are believed no further than their form. What is before the
//! first one that makes no sense is known, what comes after it is not, and that is told.

use std::borrow::Cow;

use crate::facts::{Fact, Kind, Side};

/// As many strings as a number of 8 bits can name.
const NAMES_MAX: usize = 256;
/// Bytes of a string; as many as any is kept of.
const NAME_MAX: usize = 1_024;

/// Strings by their number: kept from event to event for their memory alone.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The first `known` are of this event.
    list: Vec<(bool, Vec<u8>)>,
}

impl Names {
    fn forget(&mut self) {
        self.list.iter_mut().for_each(|(known, _)| *known = false);
    }

    fn give(&mut self, number: usize) -> &mut Vec<u8> {
        if self.list.len() <= number {
            self.list.resize_with(number + 1, Default::default);
        }
        let (known, bytes) = &mut self.list[number];
        *known = true;
        bytes.clear();
        bytes
    }

    fn get(&self, number: u64) -> Option<Cow<'_, str>> {
        let (known, bytes) = self.list.get(number as usize % NAMES_MAX)?;
        known.then(|| String::from_utf8_lossy(bytes))
    }
}

/// Gives out the facts; none, where a word makes no sense: what came before it was given out.
pub(crate) fn read(
    mut words: impl Iterator<Item = u64>,
    names: &mut Names,
    out: &mut impl FnMut(Fact<'_>),
) -> Option<()> {
    names.forget();
    let mut about = None;
    while let Some(head) = words.next() {
        let byte = |from: u32| head >> from & 0xff;
        match head & 0xff {
            1 => name(head, &mut words, names)?,
            2 => {
                let flags = byte(12) & 0xf;
                let span = words.next()?;
                let mut said = |is_there, else_it_is| if is_there { words.next() } else { Some(else_it_is) };
                let trace_lo = said(flags & 4 == 0, span)?;
                let (trace_hi, parent) = (said(flags & 1 != 0, 0)?, said(flags & 2 != 0, 0)?);
                about = Some(span);
                out(Fact::Begin {
                    trace_hi,
                    trace_lo,
                    span,
                    parent,
                    kind: kind(byte(8) & 0xf),
                    on: false,
                    kept_per_million: (head >> 32).min(1_000_000) as u32,
                    name: names.get(byte(16))?,
                    service: names.get(byte(24))?,
                });
            }
            3 => about = Some(words.next()?),
            4 => {
                let value = words.next()? as i64;
                out(Fact::Number { span: about?, key: names.get(byte(8))?, value });
            }
            5 => {
                out(Fact::Text { span: about?, key: names.get(byte(8))?, value: names.get(byte(16))? });
            }
            6 => out(Fact::Event { span: about?, name: names.get(byte(8))? }),
            7 => out(Fact::Meeting {
                span: about?,
                side: if byte(8) & 1 == 0 { Side::Asked } else { Side::Answered },
                unique: byte(8) & 2 != 0,
                rule: names.get(byte(16))?,
                connection: names.get(byte(24))?,
                cookie: if byte(8) & 4 == 0 { words.next()? } else { head >> 32 },
            }),
            8 => {
                let status = ((head >> 32) as i32).saturating_abs();
                out(Fact::End { span: words.next()?, status });
            }
            // The upper 48 bits, signed.
            9 => out(Fact::Number { span: about?, key: names.get(byte(8))?, value: head as i64 >> 16 }),
            10 => {
                for _ in 0..head >> 8 {
                    out(Fact::End { span: words.next()?, status: 0 });
                }
            }
            _ => return None,
        }
    }
    Some(())
}

fn name(head: u64, words: &mut impl Iterator<Item = u64>, names: &mut Names) -> Option<()> {
    let length = (head >> 16 & 0xffff) as usize;
    if length > NAME_MAX {
        return None;
    }
    let bytes = names.give((head >> 8 & 0xff) as usize);
    while bytes.len() < length {
        let eight = words.next()?.to_le_bytes();
        bytes.extend_from_slice(&eight[..eight.len().min(length - bytes.len())]);
    }
    Some(())
}

fn kind(number: u64) -> Kind {
    match number {
        1 => Kind::Server,
        2 => Kind::Client,
        _ => Kind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts(words: &[u64]) -> (Vec<String>, bool) {
        let mut all = Vec::new();
        let whole = read(words.iter().copied(), &mut Names::default(), &mut |fact| {
            all.push(format!("{fact:?}"));
        });
        (all, whole.is_some())
    }

    /// `READ` as number 0, `nbd` as number 1.
    const NAMES: [u64; 4] = [1 | 4 << 16, 0x4441_4552, 1 | 1 << 8 | 3 << 16, 0x64_626e];
    const BEGIN: [u64; 5] = [2 | 1 << 8 | 3 << 12 | 1 << 24 | 500_000 << 32, 0xa, 0xb, 0xc, 0xd];

    #[test]
    fn each_thing_is_what_it_says() {
        let rest = [4, u64::MAX, 3, 0xe, 5 | 1 << 16, 6 | 1 << 8, 7 | 3 << 8 | 1 << 16, 9, 8 | 5 << 32, 0xa];
        let (all, whole) = facts(&[&NAMES[..], &BEGIN, &rest].concat());
        assert_eq!(
            all,
            [
                "Begin { trace_hi: 12, trace_lo: 11, span: 10, parent: 13, kind: Server, on: false, \
                 kept_per_million: 500000, name: \"READ\", service: \"nbd\" }",
                "Number { span: 10, key: \"READ\", value: -1 }",
                "Text { span: 14, key: \"READ\", value: \"nbd\" }",
                "Event { span: 14, name: \"nbd\" }",
                "Meeting { span: 14, side: Answered, unique: true, rule: \"nbd\", connection: \"READ\", cookie: 9 }",
                "End { span: 10, status: 5 }",
            ]
        );
        assert!(whole);
    }

    #[test]
    fn what_is_short_is_as_what_is_long() {
        let least = -1_i64 << 47;
        let short = [
            2 | 1 << 8 | 6 << 12 | 1 << 24 | 1_000_000 << 32,
            0xa,
            0xd,
            9 | (4096 << 16),
            9 | (least as u64) << 16,
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
            least as u64,
            7 | 1 << 8 | 1 << 16,
            u32::MAX.into(),
            8,
            0xa,
            8,
            0xb,
        ];
        let told = |more: &[u64]| facts(&[&NAMES[..], more].concat());
        assert_eq!(told(&short), told(&long));
        assert_eq!(told(&short).0.len(), 6);
    }

    #[test]
    fn what_makes_no_sense_ends_it_and_what_was_before_is_known() {
        let told = |more: &[u64]| facts(&[&NAMES[..], &BEGIN, more].concat());
        for wrong in [
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
            let (all, whole) = told(wrong);
            assert_eq!((all.len(), whole), (1, false), "{wrong:?}");
        }
        assert_eq!(facts(&[4, 1]), (Vec::new(), false), "about nobody");
        assert_eq!(facts(&[2, 1, 2]), (Vec::new(), false), "a name that was not given");
    }

    #[test]
    fn a_name_is_of_its_event_alone() {
        let mut names = Names::default();
        let mut nothing = |_: Fact<'_>| {};
        assert!(read(NAMES.into_iter(), &mut names, &mut nothing).is_some());
        assert!(read([3, 1, 6].into_iter(), &mut names, &mut nothing).is_none());
    }

    proptest! {
        #[test]
        fn whatever_comes_is_facts_or_none(words in proptest::collection::vec(
            prop_oneof![any::<u64>(), (0_u64..12, any::<u64>()).prop_map(|(tag, rest)| tag | rest << 8),
                        (0_u64..12, 0_u64..40).prop_map(|(tag, length)| tag | length << 16)], 0..64)) {
            let _ = facts(&words);
        }
    }
}
