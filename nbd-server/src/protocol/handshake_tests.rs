//! Haggling with clients of every kind, in memory; that real ones get on with it is tests/clients.rs' matter.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

struct Script {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn offer() -> Offer {
    Offer { name: "disk".into(), size: 0x1234_5678, read_only: false }
}

fn option_of(option: u32, data: &[u8]) -> Vec<u8> {
    [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data]
        .concat()
}

fn named(name: &[u8], rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name, rest].concat()
}

fn queries(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let all: Vec<u8> = queries.iter().flat_map(|query| named(query, &[])).collect();
    named(name, &[&(queries.len() as u32).to_be_bytes()[..], &all].concat())
}

/// What came of a client that says this, what it was answered behind the greeting, and what of its words is left.
fn said(flags: u32, options: &[Vec<u8>]) -> (Result<Option<Session>, NoSession>, Vec<u8>, usize) {
    let input = [&flags.to_be_bytes()[..], &options.concat()].concat();
    let length = input.len();
    let mut script = Script { input: Cursor::new(input), output: Vec::new() };
    let outcome = greet(&mut script, &offer());
    let left = length - script.input.position() as usize;
    (outcome, script.output.split_off(18), left)
}

/// (option, kind, data) of each answer. Panics where they are not well-formed.
fn answers(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(u64_at(bytes, 0), REPLY_MAGIC);
        let length = u32_at(bytes, 16) as usize;
        out.push((u32_at(bytes, 8), u32_at(bytes, 12), bytes[20..20 + length].to_vec()));
        bytes = &bytes[20 + length..];
    }
    out
}

fn kinds(bytes: &[u8]) -> Vec<u32> {
    answers(bytes).iter().map(|(_, kind, _)| *kind).collect()
}

const BOTH: u32 = FIXED_NEWSTYLE | NO_ZEROES;

#[test]
fn the_old_way_ends_in_zeroes_unless_they_are_declined() {
    for (flags, zeroes) in [(FIXED_NEWSTYLE, 124), (BOTH, 0), (0, 124)] {
        let (outcome, answer, left) = said(flags, &[option_of(option::EXPORT_NAME, b"disk"), vec![1, 2, 3]]);
        assert_eq!((outcome.unwrap(), left), (Some(Session::default()), 3));
        assert_eq!((u64_at(&answer, 0), answer.len()), (offer().size, 10 + zeroes));
        // Without structured replies there is no DF.
        assert_eq!(u16::from_be_bytes([answer[8], answer[9]]), 0b1101_0110_1101);
    }
    assert!(said(BOTH, &[option_of(option::EXPORT_NAME, b"another")]).0.is_err());
}

#[test]
fn go_tells_size_flags_and_limits_and_begins() {
    let go =
        named(b"", &[&2_u16.to_be_bytes()[..], &info::NAME.to_be_bytes(), &9_u16.to_be_bytes()].concat());
    let options = [option_of(option::STRUCTURED_REPLY, b""), option_of(option::GO, &go), vec![9]];
    let (outcome, answer, left) = said(BOTH, &options);
    assert_eq!((outcome.unwrap(), left), (Some(Session { structured: true, allocation: false }), 1));
    let answers = answers(&answer);
    let kinds: Vec<u32> = answers.iter().map(|(_, kind, _)| *kind).collect();
    assert_eq!(kinds, [answer::ACK, answer::INFO, answer::INFO, answer::INFO, answer::ACK]);
    let flags = 0b1101_1110_1101_u16;
    assert_eq!(answers[1].2, [&[0, 0], &offer().size.to_be_bytes()[..], &flags.to_be_bytes()].concat());
    assert_eq!(answers[2].2, b"\0\x01disk");
    assert_eq!(answers[3].2, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
}

#[test]
fn contexts_need_structured_replies_and_the_last_word_counts() {
    let set = |query: &[u8]| option_of(option::SET_META_CONTEXT, &queries(b"disk", &[query]));
    let structured = || option_of(option::STRUCTURED_REPLY, b"");
    let go = || option_of(option::GO, &named(b"disk", &[0, 0]));
    let (_, answer, _) = said(BOTH, &[set(b"base:allocation")]);
    assert_eq!(kinds(&answer), [answer::ERR_INVALID]);
    let (outcome, answer, _) = said(BOTH, &[structured(), set(b"base:allocation"), go()]);
    assert_eq!(outcome.unwrap(), Some(Session { structured: true, allocation: true }));
    assert_eq!(answers(&answer)[1].2, b"\0\0\0\x01base:allocation");
    let (outcome, ..) = said(BOTH, &[structured(), set(b"base:allocation"), set(b"x-other:y"), go()]);
    assert_eq!(outcome.unwrap(), Some(Session { structured: true, allocation: false }));
    for (asked, found) in [(vec![], 1), (vec![&b"base:"[..]], 1), (vec![b"x:"], 0)] {
        let list = option_of(option::LIST_META_CONTEXT, &queries(b"disk", &asked));
        let (_, answer, _) = said(BOTH, &[structured(), list]);
        assert_eq!(kinds(&answer).len(), 2 + found, "{asked:?}");
    }
    let other = option_of(option::SET_META_CONTEXT, &queries(b"another", &[b"base:allocation"]));
    assert_eq!(kinds(&said(BOTH, &[structured(), other]).1), [answer::ACK, answer::ERR_UNKNOWN]);
}

#[test]
fn who_leaves_is_told_so_and_what_is_not_known_is_refused() {
    let options =
        [option_of(option::LIST, b""), option_of(5, b""), option_of(12, b""), option_of(option::ABORT, b"")];
    let (outcome, answer, _) = said(BOTH, &options);
    assert_eq!(outcome.unwrap(), None);
    let expected = [answer::SERVER, answer::ACK, answer::ERR_UNSUP, answer::ERR_UNSUP, answer::ACK];
    assert_eq!(kinds(&answer), expected);
    assert_eq!(answers(&answer)[0].2, b"\0\0\0\x04disk");
}

#[test]
fn limits_are_kept() {
    assert!(matches!(said(4, &[]).0, Err(NoSession::Violation(_))));
    let long = option_of(99, &vec![0; OPTION_MAX as usize + 1]);
    assert_eq!(kinds(&said(BOTH, &[long, option_of(99, b"")]).1), [answer::ERR_TOO_BIG, answer::ERR_UNSUP]);
    let mut endless = option_of(99, b"");
    endless[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(said(BOTH, &[endless]).0, Err(NoSession::Violation("an endless option"))));
    let haggling = vec![option_of(option::LIST, b""); OPTIONS_MAX + 1];
    assert!(matches!(said(BOTH, &haggling).0, Err(NoSession::Violation("endless haggling"))));
}

/// Options as a client that errs makes them: known numbers, data of any kind.
fn options() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        Just(named(b"disk", &[0, 0])),
        Just(queries(b"disk", &[b"base:allocation"])),
        (0..70_u32, prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(n, data)| [
            &n.to_be_bytes()[..],
            &data
        ]
        .concat()),
    ];
    prop::collection::vec((0..14_u32, data).prop_map(|(option, data)| option_of(option, &data)), 0..12)
}

proptest! {
    #[test]
    fn whatever_is_said_is_answered_well_or_ends_it(
        flags in prop_oneof![Just(BOTH), any::<u32>()],
        options in options(),
        noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let options = [options, vec![noise]].concat();
        let (outcome, answer, _) = said(flags, &options);
        let by_name = matches!(outcome, Ok(Some(_))) && options.iter().any(|option| option.starts_with(b"IHAVEOPT\0\0\0\x01"));
        if !by_name {
            answers(&answer);
        }
    }
}
