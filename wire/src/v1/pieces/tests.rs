use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use crate::ids::{BootId, NodeId, Source, SpanId, StartEpoch, TraceId};
use crate::meeting::{Across, ClockShift, LinkHalf, Meeting, MeetingEvent, Moved, NodeClock, Side};
use crate::piece::{Epoch, Origin, Part, Piece, PieceBatch, Sampled, Stage};
use crate::span::{Span, SpanKind, SpanLink, TagValue};
use crate::v1::{Malformed, VERSION};

/// Few, so that some repeat.
fn word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{0,1}", "\\PC{0,20}"]
}

/// Few, so that some are each other's parents.
fn id() -> impl Strategy<Value = SpanId> {
    prop_oneof![0..6_u64, any::<u64>()].prop_map(SpanId)
}

fn tag() -> impl Strategy<Value = TagValue> {
    prop_oneof![
        word().prop_map(|word| TagValue::Text(word.into())),
        word().prop_map(|word| TagValue::Shared(word.into())),
        any::<i64>().prop_map(TagValue::Number),
    ]
}

fn link() -> impl Strategy<Value = SpanLink> {
    (any::<u128>(), id(), word()).prop_map(|(trace, span, relation)| SpanLink {
        trace: TraceId(trace),
        span,
        relation: relation.into(),
    })
}

prop_compose! {
    fn span()(
        trace in option::weighted(0.1, any::<u128>()), id in id(), parent in option::of(id()), name in word(), service in word(),
        remote in option::of(word()), kind in 0..3_usize, start: u64, duration: u64,
        annotations in vec((any::<u64>(), word()), 0..3), tags in vec((word(), tag()), 0..6), error in option::of(word()),
        links in vec(link(), 0..3)
    ) -> (Option<u128>, Span) {
        let annotations = annotations.into_iter().map(|(time, word)| (WallclockNs(time), word.into())).collect();
        let span = Span {
            trace: TraceId(0), id, parent, name: name.into(), service: service.into(), remote_service: remote.map(Into::into),
            kind: [SpanKind::Local, SpanKind::Client, SpanKind::Server][kind], start: WallclockNs(start),
            duration: DurationNs(duration), annotations, tags: tags.into_iter().map(|(key, value)| (key.into(), value)).collect(),
            error: error.map(Into::into), links,
        };
        (trace, span)
    }
}

prop_compose! {
    fn half()(
        span in id(), root in id(), asked: bool, rule in word(), connection in word(), cookie: u64, unique: bool,
        unanswered: bool, ids: (u128, u128, u64), times: [u64; 5]
    ) -> LinkHalf {
        let [begin, end, monotonic, wallclock, uncertainty] = times;
        LinkHalf {
            event: MeetingEvent {
                span, root, side: if asked { Side::Asked } else { Side::Answered },
                meeting: Meeting { rule: rule.into(), connection: connection.into(), cookie }, unique, unanswered,
                begin: MonotonicNs(begin), end: MonotonicNs(end),
            },
            trace: TraceId(0),
            clock: NodeClock {
                source: Source { node: NodeId(ids.0), boot: BootId(ids.1), epoch: StartEpoch(ids.2) },
                anchor: ClockAnchor {
                    monotonic: MonotonicNs(monotonic), wallclock: WallclockNs(wallclock), uncertainty: DurationNs(uncertainty),
..ClockAnchor::NONE
},
            },
        }
    }
}

prop_compose! {
    fn moved()(to: u128, parent in id(), rule in word(), shift: i64, error: u64) -> Moved {
        Moved { to: TraceId(to), parent, rule: rule.into(), clock: ClockShift { shift, error: DurationNs(error) } }
    }
}

fn across() -> impl Strategy<Value = Across> {
    prop_oneof![
        4 => Just(Across::Nothing),
        1 => Just(Across::Head),
        1 => Just(Across::Below),
        1 => Just(Across::Awaits),
        1 => half().prop_map(|half| Across::Half(half.into())),
        1 => moved().prop_map(|moved| Across::Moved(moved.into())),
        1 => any::<u8>().prop_map(Across::Forwarded),
    ]
}

prop_compose! {
    fn piece()(
        trace: u128, spans in vec(span(), 0..6), later: bool, complete: bool, sampled in option::of((word(), any::<u32>())),
        sampled_by_program: bool, mut across in across()
    ) -> Piece {
        let own = |(other, span): (Option<u128>, Span)| Span { trace: TraceId(other.unwrap_or(trace)), ..span };
        if let Across::Half(half) = &mut across {
            half.trace = TraceId(trace);
        }
        Piece {
            trace: TraceId(trace), spans: spans.into_iter().map(own).collect(),
            part: if later { Part::Later } else { Part::First }, complete,
            sampled: sampled.map(|(rule, one_in)| Sampled { rule: rule.into(), one_in }), sampled_by_program,
            across,
        }
    }
}

prop_compose! {
    fn batch()(stage in 0..3_usize, partition: u32, epoch: u64, first: u64, pieces in vec(piece(), 0..8)) -> PieceBatch {
        let stage = [Stage::Join, Stage::Assemble, Stage::Meet][stage];
        PieceBatch { from: Origin { stage, partition, epoch: Epoch(epoch) }, first, pieces }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(batch in batch()) {
        let bytes = encode_pieces(&batch);
        let read = decode_pieces(&bytes);
        prop_assert_eq!(read.as_ref(), Ok(&batch));
        prop_assert_eq!(read.map(|read| encode_pieces(&read)), Ok(bytes), "and written again the same");
    }

    #[test]
    fn a_record_is_never_longer_than_was_said_before(batch in batch()) {
        let mut writer = PieceWriter::begin(batch.from, batch.first);
        for (n, piece) in batch.pieces.iter().enumerate() {
            let said = writer.bytes_with(piece);
            writer.piece(piece);
            prop_assert!(writer.bytes_max() <= said, "{} with piece {n}, and {said} was said", writer.bytes_max());
        }
        let (said, spans) = (writer.bytes_max(), batch.pieces.iter().map(|piece| piece.spans.len()).sum());
        prop_assert_eq!(writer.count(), Count { pieces: batch.pieces.len(), spans });
        let bytes = writer.end();
        prop_assert!(bytes.len() <= said && bytes.capacity() == said, "{} long, and {said} was said", bytes.len());
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode_pieces(&bytes);
    }

    #[test]
    fn a_batch_with_bytes_changed_is_a_batch_or_an_error(
        batch in batch(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut: prop::sample::Index
    ) {
        let mut bytes = encode_pieces(&batch);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode_pieces(&bytes);
        let _ = decode_pieces(&bytes[..cut.index(bytes.len())]);
    }
}

/// An fsync over a file system with the commit that it waited for, and a late bio of another trace. `golden/pieces-v1.bin`
/// holds it.
fn known() -> PieceBatch {
    let trace = TraceId(0x6a09_e667_f3bc_c908_bb67_ae85_84ca_a73b);
    let call = Span {
        trace,
        id: SpanId(0xbb67_ae85_84ca_a73b),
        parent: None,
        name: "fsync".into(),
        service: "postgres".into(),
        remote_service: Some("ext4".into()),
        kind: SpanKind::Client,
        start: WallclockNs(1_790_000_000_000_000_123),
        duration: DurationNs(1_895_000),
        annotations: vec![(WallclockNs(1_790_000_000_000_020_123), "commit waited for".into())],
        tags: vec![
            ("process.pid".into(), TagValue::Number(4_300)),
            ("file.path".into(), TagValue::Shared("/srv/ä".into())),
            ("blkkin.return".into(), TagValue::Number(-5)),
        ],
        error: Some("EIO".into()),
        links: vec![SpanLink {
            trace: TraceId(7 << 64 | 9),
            span: SpanId(9),
            relation: "waited for this commit (rule: ext4 transaction id)".into(),
        }],
    };
    let below = Span {
        id: SpanId(0x3c6e_f372_fe94_f82b),
        parent: Some(call.id),
        service: "ext4".into(),
        remote_service: None,
        kind: SpanKind::Server,
        start: WallclockNs(1_790_000_000_000_001_000),
        annotations: Vec::new(),
        tags: vec![("blkkin.link".into(), TagValue::Text("ext4".into()))],
        error: None,
        links: Vec::new(),
        ..call.clone()
    };
    let bio = Span {
        id: SpanId(0xa54f_f53a_5f1d_36f1),
        parent: Some(SpanId(0x510e_527f_ade6_82d1)),
        name: "bio write".into(),
        kind: SpanKind::Local,
        start: WallclockNs(1_789_999_999_999_999_999),
        duration: DurationNs(999),
        tags: Vec::new(),
        ..below.clone()
    };
    let other = TraceId(0x1f83_d9ab_fb41_bd6b);
    PieceBatch {
        from: Origin { stage: Stage::Assemble, partition: 11, epoch: Epoch(0xfeed_f00d_dead_beef) },
        first: 41,
        pieces: vec![
            Piece {
                trace,
                spans: vec![call, below],
                part: Part::First,
                complete: true,
                sampled: Some(Sampled { rule: "one in 100".into(), one_in: 100 }),
                sampled_by_program: false,
                across: Across::Nothing,
            },
            Piece {
                trace: other,
                spans: vec![Span { trace: other, ..bio.clone() }, bio],
                part: Part::Later,
                complete: false,
                sampled: None,
                sampled_by_program: false,
                across: Across::Nothing,
            },
        ],
    }
}

/// Bytes of version 1 as they were first written. A change here is a change of what others have stored: it needs a version.
#[test]
fn bytes_that_were_written_once_mean_the_same_for_ever() {
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/pieces-v1.bin");
        std::fs::write(path, encode_pieces(&known())).unwrap();
    }
    let golden = include_bytes!("../../../golden/pieces-v1.bin");
    assert_eq!(decode_pieces(golden), Ok(known()));
    assert_eq!(encode_pieces(&known()), golden, "what is written now");
}

/// What the stages say to each other of two nodes. `golden/links-v1.bin` holds it.
fn linked() -> PieceBatch {
    let clock = NodeClock {
        source: Source { node: NodeId(7), boot: BootId(8), epoch: StartEpoch(0xfeed_f00d_dead_beef) },
        anchor: ClockAnchor {
            monotonic: MonotonicNs(4_000_000_000),
            wallclock: WallclockNs(1_790_000_000_000_000_000),
            uncertainty: DurationNs(60),
            ..ClockAnchor::NONE
        },
    };
    let event = MeetingEvent {
        span: SpanId(0x3c6e_f372_fe94_f82b),
        root: SpanId(0xbb67_ae85_84ca_a73b),
        side: Side::Asked,
        meeting: Meeting {
            rule: "nbd".into(),
            connection: "10.0.0.1:41234>10.0.0.2:10809".into(),
            cookie: 1 << 32 | 7,
        },
        unique: true,
        unanswered: false,
        begin: MonotonicNs(5_000_000_000),
        end: MonotonicNs(5_000_200_000),
    };
    let (asker, answerer) = (TraceId(0x6a09 << 64 | 0xbb67), TraceId(0x510e << 64 | 0x9b05));
    let piece = |trace, across| Piece {
        trace,
        spans: Vec::new(),
        part: Part::First,
        complete: false,
        sampled: None,
        sampled_by_program: false,
        across,
    };
    let moved = Moved {
        to: asker,
        parent: event.span,
        rule: "nbd".into(),
        clock: ClockShift { shift: -1_234_567, error: DurationNs(25_000) },
    };
    PieceBatch {
        from: Origin { stage: Stage::Meet, partition: 3, epoch: Epoch(5) },
        first: 9,
        pieces: vec![
            piece(asker, Across::Half(LinkHalf { event, trace: asker, clock }.into())),
            piece(answerer, Across::Moved(moved.into())),
            piece(answerer, Across::Awaits),
            piece(asker, Across::Forwarded(1)),
        ],
    }
}

/// That an application samples a trace. `golden/by-program-v1.bin` holds it.
#[test]
fn what_a_program_samples_means_the_same_for_ever() {
    let mut batch = known();
    batch.pieces[1].sampled_by_program = true;
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/by-program-v1.bin");
        std::fs::write(path, encode_pieces(&batch)).unwrap();
    }
    let golden = include_bytes!("../../../golden/by-program-v1.bin");
    assert_eq!(decode_pieces(golden), Ok(batch.clone()));
    assert_eq!(encode_pieces(&batch), golden, "what is written now");
}

#[test]
fn what_is_said_of_two_nodes_means_the_same_for_ever() {
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/links-v1.bin");
        std::fs::write(path, encode_pieces(&linked())).unwrap();
    }
    let golden = include_bytes!("../../../golden/links-v1.bin");
    assert_eq!(decode_pieces(golden), Ok(linked()));
    assert_eq!(encode_pieces(&linked()), golden, "what is written now");
}

#[test]
fn another_version_is_refused_by_its_number() {
    let mut bytes = encode_pieces(&known());
    assert_eq!(bytes[..2], [1 << 3, VERSION as u8], "field 1 comes first");
    bytes[1] = 2;
    assert_eq!(decode_pieces(&bytes), Err(Malformed::Version(2)));
    assert_eq!(decode_pieces(&[]), Err(Malformed::Version(0)));
}

#[test]
fn a_field_that_is_not_known_is_ignored() {
    let mut bytes = encode_pieces(&known());
    // Field 1000, a varint.
    bytes.extend([0xc0, 0x3e, 0x07]);
    assert_eq!(decode_pieces(&bytes), Ok(known()));
}

#[test]
fn a_word_stands_once() {
    let bytes = encode_pieces(&known());
    let said = |word: &[u8]| bytes.windows(word.len()).filter(|window| *window == word).count();
    assert_eq!((said(b"ext4"), said(b"fsync"), said(b"postgres")), (2, 1, 1), "ext4 is in the relation too");
}

fn changed(change: fn(&mut message::PieceBatch)) -> Malformed {
    use prost::Message;
    let mut message = message::PieceBatch::decode(encode_pieces(&known()).as_slice()).unwrap();
    change(&mut message);
    decode_pieces(&message.encode_to_vec()).unwrap_err()
}

#[test]
fn a_column_too_short_or_too_long_is_named() {
    let wrong = |column, value| Malformed::Value { column, value };
    assert_eq!(changed(|m| m.stage = 0), wrong("PieceBatch.stage", 0));
    assert_eq!(changed(|m| m.stage = 4), wrong("PieceBatch.stage", 4));
    assert_eq!(changed(|m| m.pieces.flags[0] |= HALF), Malformed::Short("PieceBatch.halves"));
    assert_eq!(changed(|m| m.pieces.flags[0] |= HALF | MOVED), wrong("Pieces.flags", 0b11_0110));
    assert_eq!(changed(|m| m.pieces.spans[0] = 5), Malformed::Short("Spans.flags"));
    assert_eq!(changed(|m| m.pieces.spans[1] = 1), Malformed::Long("Spans.flags"));
    assert_eq!(changed(|m| m.spans.flags[0] |= KIND), wrong("Spans.flags", 0b11_0011));
    assert_eq!(changed(|m| m.spans.parent_here[0] = 2), wrong("Spans.parent_here", 2));
    assert_eq!(changed(|m| m.spans.parent_elsewhere.push(1)), Malformed::Long("Spans.parent_elsewhere"));
    assert_eq!(changed(|m| m.spans.name[0] = 99), wrong("Spans.name", 99));
    assert_eq!(changed(|m| m.tags.value[1] = 100), wrong("Tags.value", 99));
    assert_eq!(changed(|m| m.tags.number.clear()), Malformed::Short("Tags.number"));
    assert_eq!(changed(|m| m.links.span.clear()), Malformed::Short("Links.span"));
    assert_eq!(changed(|m| m.annotations.time.push(0)), Malformed::Long("Annotations.time"));
}

#[test]
fn a_short_record_that_says_a_long_word_often_is_refused() {
    let place = changed(|m| {
        m.words.push("x".repeat(1 << 20));
        let long = m.words.len() as u32 - 1;
        let often = COPIED_BYTES_MAX >> 20;
        m.tags.key.splice(0..0, std::iter::repeat_n(long, often + 1));
        m.tags.value.splice(0..0, std::iter::repeat_n(0, often + 1));
        m.tags.number.splice(0..0, std::iter::repeat_n(0, often + 1));
        m.spans.tags[0] += often as u32 + 1;
    });
    assert!(matches!(place, Malformed::Value { column: "Tags.key", .. }), "{place}");
}
