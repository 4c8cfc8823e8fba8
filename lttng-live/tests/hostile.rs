//! Invalid metadata and packets: the result is an error or events, without a panic or an endless
//! loop.

mod support;

use blkkin_lttng_live::ctf::metadata::CtfTrace;
use blkkin_lttng_live::ctf::packet::{CounterBaseline, Decoder, Event};
use proptest::prelude::*;
use proptest::sample::Index;
use support::synthetic;

/// Change to bytes.
#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Cut(Index),
    Drop(Index, u8),
    Repeat(Index, u8),
    Insert(Index, &'static str),
}

/// Words of the language, and extreme numbers.
const WORDS: [&str; 24] = [
    "struct",
    "{",
    "}",
    ";",
    "variant <",
    "enum : ",
    "[18446744073709551615]",
    "[4294967295]",
    "align(4096)",
    "integer { size = 64; align = 1; }",
    "string",
    "-1",
    "0",
    ":=",
    "...",
    "/*",
    "\"",
    "=",
    "event {",
    "stream {",
    "typealias",
    "size = 0",
    "map = clock.x.value",
    "'",
];

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let one = prop_oneof![
        (any::<Index>(), 1_u8..).prop_map(|(at, with)| Change::Flip(at, with)),
        any::<Index>().prop_map(Change::Cut),
        (any::<Index>(), any::<u8>()).prop_map(|(at, length)| Change::Drop(at, length)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, length)| Change::Repeat(at, length)),
        (any::<Index>(), proptest::sample::select(&WORDS[..]))
            .prop_map(|(at, word)| Change::Insert(at, word)),
    ];
    prop::collection::vec(one, 1..4)
}

fn apply(bytes: &mut Vec<u8>, changes: &[Change]) {
    for change in changes {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        let span =
            |at: &Index, span: u8| (at.index(length), (at.index(length) + usize::from(span)).min(length));
        match change {
            Change::Flip(at, with) => bytes[at.index(length)] ^= with,
            Change::Cut(at) => bytes.truncate(at.index(length)),
            Change::Drop(at, many) => {
                let (from, to) = span(at, *many);
                bytes.drain(from..to);
            }
            Change::Repeat(at, many) => {
                let (from, to) = span(at, *many);
                let again = bytes[from..to].to_vec();
                bytes.splice(to..to, again);
            }
            Change::Insert(at, word) => {
                let at = at.index(length);
                bytes.splice(at..at, word.bytes());
            }
        }
    }
}

/// Decodes until the first error; returns the number of events.
fn drain(trace: &CtfTrace, packets: &[Vec<u8>]) -> usize {
    let (mut decoder, mut event, mut events) = (Decoder::new(CounterBaseline::Zero), Event::default(), 0);
    for packet in packets {
        let Ok((_, mut position)) = decoder.open(trace, packet) else { continue };
        while let Ok(true) = decoder.next(trace, packet, &mut position, &mut event) {
            for items in [&event.stream_context, &event.context, &event.payload] {
                assert!(items.top.iter().all(|&at| (at as usize) < items.list.len()));
            }
            events += 1;
            assert!(events <= 8 * packet.len(), "an event has at least one bit");
        }
        events = 0;
    }
    events
}

fn written(seed: u64) -> synthetic::Written {
    let folder = tempfile::tempdir().expect("a folder");
    synthetic::trace(seed, 2, folder.path())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn decoding_changed_metadata_does_not_panic(seed in 1_u64..40, changes in changes()) {
        let mut written = written(seed);
        let mut bytes = std::mem::take(&mut written.metadata).into_bytes();
        apply(&mut bytes, &changes);
        if let Ok(trace) = CtfTrace::read(&bytes) {
            drain(&trace, &written.packets);
        }
    }

    #[test]
    fn decoding_changed_packets_does_not_panic(seed in 1_u64..40, changes in changes()) {
        let written = written(seed);
        let trace = CtfTrace::read(written.metadata.as_bytes()).expect("a written trace is valid");
        let mut packets = written.packets;
        packets.iter_mut().for_each(|packet| apply(packet, &changes));
        drain(&trace, &packets);
    }

    #[test]
    fn fragmented_metadata_equals_complete_metadata(seed in 1_u64..40, cuts in prop::collection::vec(any::<Index>(), 1..9)) {
        let text = written(seed).metadata;
        let whole = CtfTrace::read(text.as_bytes()).expect("a written trace is valid");
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut trace = CtfTrace::default();
        for pair in cuts.windows(2) {
            trace.append(&text.as_bytes()[pair[0]..pair[1]]).expect("a fragment is accepted");
        }
        trace.check_complete().expect("the metadata is complete");
        let streams = |trace: &CtfTrace| format!("{:?}", trace.streams);
        prop_assert!(streams(&whole) == streams(&trace), "cut at {:?}", cuts);
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(CtfTrace::read(&bytes).is_err());
    }
}

#[test]
fn nesting_and_doubling_are_bounded() {
    let header = "trace { major = 1; minor = 8; byte_order = le; };\
                typealias integer { size = 8; align = 8; signed = false; } := a0;";
    let mut doubling = header.to_owned();
    for n in 0..20 {
        doubling += &format!("typealias struct {{ a{n} x; a{n} y; }} := a{};", n + 1);
    }
    doubling += "stream { event.context := a20; };";
    let error = CtfTrace::read(doubling.as_bytes()).expect_err("a million fields");
    assert!(error.to_string().contains("more than 8192 fields"), "{error}");

    let deep = format!(
        "{header}stream {{ event.context := {}a0 x;{}; }};",
        "struct { ".repeat(9999),
        "} x;".repeat(9999)
    );
    let error = CtfTrace::read(deep.as_bytes()).expect_err("ten thousand deep");
    assert!(error.to_string().contains("nests deeper"), "{error}");

    let mut chained = header.to_owned();
    for n in 0..9999 {
        chained += &format!("typealias struct {{ a{n} x; }} := a{};", n + 1);
    }
    let error = CtfTrace::read(chained.as_bytes()).expect_err("ten thousand deep");
    assert!(error.to_string().contains("nest deeper"), "{error}");
}

#[test]
fn elements_without_bits_are_bounded() {
    let text = "trace { major = 1; minor = 8; byte_order = le; };\
        stream { event.header := struct { integer { size = 8; } id; }; };\
        event { name = \"e\"; id = 0; fields := struct { struct { } x[4000000000]; }; };";
    let trace = CtfTrace::read(text.as_bytes()).expect("the metadata is valid");
    let (mut decoder, packet) = (Decoder::new(CounterBaseline::Zero), [0_u8; 4]);
    let (_, mut position) = decoder.open(&trace, &packet).expect("the packet has no header");
    let error = decoder.next(&trace, &packet, &mut position, &mut Event::default()).expect_err("too many");
    assert!(error.to_string().contains("fields"), "{error}");
}

#[test]
fn errors_name_the_unsupported_part() {
    let refusal = |text: &str| CtfTrace::read(text.as_bytes()).expect_err("an error").to_string();
    assert!(refusal("\u{1e}{\"type\": \"preamble\", \"version\": 2}").contains("CTF 2"));
    assert!(refusal("/* CTF 1.8 */\ntrace {\n  major = 2;\n};\n").contains("line 2: CTF 2"));
    let header = "trace { major = 1; minor = 8; byte_order = le; };\n";
    assert_eq!(
        refusal(&format!(
            "{header}stream {{ event.context := struct {{ integer {{ size = 128; }} x; }}; }};"
        )),
        "metadata, line 2: an integer of 128 bits is not supported, only 1 to 64"
    );
    assert_eq!(
        refusal(&format!("{header}stream {{ event.context := struct {{ string s[n]; }}; }};")),
        "metadata, line 2: no field `n` is declared before its use"
    );
    assert_eq!(refusal("trace { major = 1;"), "the metadata ends within a declaration, at line 1");
    assert_eq!(refusal(""), "the metadata has no `trace` block");
}
