//! Negotiations with scripted clients in memory. `tests/clients.rs` runs real clients.

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

fn export() -> ExportInfo {
    ExportInfo { name: "disk".into(), size: 0x1234_5678, read_only: false }
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

/// Runs the handshake with a client that sends `flags` and `options`. Returns the outcome, the
/// bytes that the server sent after its greeting, and the number of bytes that it did not read.
fn run_handshake(
    flags: u32,
    options: &[Vec<u8>],
) -> (Result<Option<Session>, HandshakeError>, Vec<u8>, usize) {
    let input = [&flags.to_be_bytes()[..], &options.concat()].concat();
    let length = input.len();
    let mut script = Script { input: Cursor::new(input), output: Vec::new() };
    let outcome = negotiate(&mut script, &export());
    let left = length - script.input.position() as usize;
    (outcome, script.output.split_off(18), left)
}

/// Decodes (option, kind, data) of each option reply. Panics if one is malformed.
fn option_replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
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
    option_replies(bytes).iter().map(|(_, kind, _)| *kind).collect()
}

const BOTH: u32 = FIXED_NEWSTYLE | NO_ZEROES;

#[test]
fn export_name_ends_in_zeroes_unless_the_client_declines_them() {
    for (flags, zeroes) in [(FIXED_NEWSTYLE, 124), (BOTH, 0), (0, 124)] {
        let (outcome, reply, left) =
            run_handshake(flags, &[option_of(option::EXPORT_NAME, b"disk"), vec![1, 2, 3]]);
        assert_eq!((outcome.unwrap(), left), (Some(Session::default()), 3));
        assert_eq!((u64_at(&reply, 0), reply.len()), (export().size, 10 + zeroes));
        // Without structured replies the server does not offer DF.
        assert_eq!(u16::from_be_bytes([reply[8], reply[9]]), 0b1101_0110_1101);
    }
    assert!(run_handshake(BOTH, &[option_of(option::EXPORT_NAME, b"another")]).0.is_err());
}

#[test]
fn go_sends_size_flags_and_limits_and_enters_transmission() {
    let go =
        named(b"", &[&2_u16.to_be_bytes()[..], &info::NAME.to_be_bytes(), &9_u16.to_be_bytes()].concat());
    let options = [option_of(option::STRUCTURED_REPLY, b""), option_of(option::GO, &go), vec![9]];
    let (outcome, reply, left) = run_handshake(BOTH, &options);
    assert_eq!((outcome.unwrap(), left), (Some(Session { structured: true, allocation: false }), 1));
    let replies = option_replies(&reply);
    let kinds: Vec<u32> = replies.iter().map(|(_, kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        [reply_type::ACK, reply_type::INFO, reply_type::INFO, reply_type::INFO, reply_type::ACK]
    );
    let flags = 0b1101_1110_1101_u16;
    assert_eq!(replies[1].2, [&[0, 0], &export().size.to_be_bytes()[..], &flags.to_be_bytes()].concat());
    assert_eq!(replies[2].2, b"\0\x01disk");
    assert_eq!(replies[3].2, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
}

#[test]
fn contexts_need_structured_replies_and_the_last_selection_wins() {
    let set = |query: &[u8]| option_of(option::SET_META_CONTEXT, &queries(b"disk", &[query]));
    let structured = || option_of(option::STRUCTURED_REPLY, b"");
    let go = || option_of(option::GO, &named(b"disk", &[0, 0]));
    let (_, reply, _) = run_handshake(BOTH, &[set(b"base:allocation")]);
    assert_eq!(kinds(&reply), [reply_type::ERR_INVALID]);
    let (outcome, reply, _) = run_handshake(BOTH, &[structured(), set(b"base:allocation"), go()]);
    assert_eq!(outcome.unwrap(), Some(Session { structured: true, allocation: true }));
    assert_eq!(option_replies(&reply)[1].2, b"\0\0\0\x01base:allocation");
    let (outcome, ..) =
        run_handshake(BOTH, &[structured(), set(b"base:allocation"), set(b"x-other:y"), go()]);
    assert_eq!(outcome.unwrap(), Some(Session { structured: true, allocation: false }));
    for (queried, found) in [(vec![], 1), (vec![&b"base:"[..]], 1), (vec![b"x:"], 0)] {
        let list = option_of(option::LIST_META_CONTEXT, &queries(b"disk", &queried));
        let (_, reply, _) = run_handshake(BOTH, &[structured(), list]);
        assert_eq!(kinds(&reply).len(), 2 + found, "{queried:?}");
    }
    let other = option_of(option::SET_META_CONTEXT, &queries(b"another", &[b"base:allocation"]));
    assert_eq!(
        kinds(&run_handshake(BOTH, &[structured(), other]).1),
        [reply_type::ACK, reply_type::ERR_UNKNOWN]
    );
}

#[test]
fn abort_is_acknowledged_and_unknown_options_are_refused() {
    let options =
        [option_of(option::LIST, b""), option_of(5, b""), option_of(12, b""), option_of(option::ABORT, b"")];
    let (outcome, reply, _) = run_handshake(BOTH, &options);
    assert_eq!(outcome.unwrap(), None);
    let expected =
        [reply_type::SERVER, reply_type::ACK, reply_type::ERR_UNSUP, reply_type::ERR_UNSUP, reply_type::ACK];
    assert_eq!(kinds(&reply), expected);
    assert_eq!(option_replies(&reply)[0].2, b"\0\0\0\x04disk");
}

#[test]
fn limits_are_enforced() {
    assert!(matches!(run_handshake(4, &[]).0, Err(HandshakeError::Violation(_))));
    let long = option_of(99, &vec![0; OPTION_MAX as usize + 1]);
    assert_eq!(
        kinds(&run_handshake(BOTH, &[long, option_of(99, b"")]).1),
        [reply_type::ERR_TOO_BIG, reply_type::ERR_UNSUP]
    );
    let mut too_long = option_of(99, b"");
    too_long[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(run_handshake(BOTH, &[too_long]).0, Err(HandshakeError::Violation("option too long"))));
    let lists = vec![option_of(option::LIST, b""); OPTIONS_MAX + 1];
    assert!(matches!(run_handshake(BOTH, &lists).0, Err(HandshakeError::Violation("too many options"))));
}

/// Options of a faulty client: known option numbers with arbitrary data.
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
    fn any_input_gets_well_formed_replies_or_an_error(
        flags in prop_oneof![Just(BOTH), any::<u32>()],
        options in options(),
        noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let options = [options, vec![noise]].concat();
        let (outcome, reply, _) = run_handshake(flags, &options);
        let by_name = matches!(outcome, Ok(Some(_))) && options.iter().any(|option| option.starts_with(b"IHAVEOPT\0\0\0\x01"));
        if !by_name {
            option_replies(&reply);
        }
    }
}
