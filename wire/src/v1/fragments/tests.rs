use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::clock::{ClockAnchor, ClockOffset, DurationNs, MonotonicNs, WallclockNs};
use crate::fragment::{
    FragmentBatch, FragmentKind, FragmentOrigin, Incarnation, Sampled, StageId, TraceFragment,
};
use crate::ids::{BootId, NodeId, Source, SpanId, StartEpoch, TraceId};
use crate::remote_link::{
    ClockShift, LinkEndpoint, NodeClock, PeerClock, RemoteLink, Reparented, RpcEndpointEvent, RpcKey, RpcSide,
};
use crate::span::{Span, SpanKind, SpanLink, TagValue};
use crate::v1::message;
use crate::v1::{Malformed, VERSION};

/// Few, so that some repeat.
fn string() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{0,1}", "\\PC{0,20}"]
}

/// Few, so that some are each other's parents.
fn id() -> impl Strategy<Value = SpanId> {
    prop_oneof![0..6_u64, any::<u64>()].prop_map(SpanId)
}

fn tag() -> impl Strategy<Value = TagValue> {
    prop_oneof![
        string().prop_map(|string| TagValue::Text(string.into())),
        string().prop_map(|string| TagValue::Shared(string.into())),
        any::<i64>().prop_map(TagValue::Number),
    ]
}

fn link() -> impl Strategy<Value = SpanLink> {
    (any::<u128>(), id(), string()).prop_map(|(trace, span, relation)| SpanLink {
        trace: TraceId(trace),
        span,
        relation: relation.into(),
    })
}

prop_compose! {
    fn span()(
        trace in option::weighted(0.1, any::<u128>()), id in id(), parent in option::of(id()), name in string(), service in string(),
        remote in option::of(string()), kind in 0..3_usize, start: u64, duration: u64,
        annotations in vec((any::<u64>(), string()), 0..3), tags in vec((string(), tag()), 0..6), error in option::of(string()),
        links in vec(link(), 0..3)
    ) -> (Option<u128>, Span) {
        let annotations = annotations.into_iter().map(|(time, string)| (WallclockNs(time), string.into())).collect();
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
    fn endpoint()(
        span in id(), root in id(), client: bool, rule in string(), connection in string(), cookie: u64, unique: bool,
        no_reply: bool, image in option::of(any::<u64>()), ids: (u128, u128, u64), times: [u64; 5], peer in option::of(any::<(u128, u128, u64, i64, i64)>())
    ) -> LinkEndpoint {
        let [begin, end, monotonic, wallclock, uncertainty] = times;
        LinkEndpoint {
            event: RpcEndpointEvent {
                span, root, side: if client { RpcSide::Client } else { RpcSide::Server },
                key: RpcKey { protocol: rule.into(), connection: connection.into(), cookie }, unique, no_reply,
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
            peer: peer.map(|(node, boot, at, low, high)| PeerClock {
                node: NodeId(node), boot: BootId(boot), offset: ClockOffset { at: MonotonicNs(at), low, high },
            }),
            image,
        }
    }
}

prop_compose! {
    fn reparented()(to: u128, parent in id(), rule in string(), shift: i64, error: u64) -> Reparented {
        Reparented { trace: TraceId(to), parent, rule: rule.into(), clock: ClockShift { shift, error: DurationNs(error) } }
    }
}

fn remote_link() -> impl Strategy<Value = RemoteLink> {
    prop_oneof![
        4 => Just(RemoteLink::None),
        1 => Just(RemoteLink::Root),
        1 => Just(RemoteLink::Child),
        1 => Just(RemoteLink::PendingParent),
        1 => endpoint().prop_map(|endpoint| RemoteLink::Endpoint(endpoint.into())),
        1 => reparented().prop_map(|reparented| RemoteLink::Reparented(reparented.into())),
        1 => any::<u8>().prop_map(RemoteLink::Forwarded),
        1 => Just(RemoteLink::Unlinked),
    ]
}

prop_compose! {
    fn fragment()(
        trace: u128, spans in vec(span(), 0..6), later: bool, complete: bool, sampled in option::of((string(), any::<u32>())),
        sampled_by_application: bool, mut remote_link in remote_link()
    ) -> TraceFragment {
        let own = |(other, span): (Option<u128>, Span)| Span { trace: TraceId(other.unwrap_or(trace)), ..span };
        if let RemoteLink::Endpoint(endpoint) = &mut remote_link {
            endpoint.trace = TraceId(trace);
        }
        TraceFragment {
            trace: TraceId(trace), spans: spans.into_iter().map(own).collect(),
            kind: if later { FragmentKind::Late } else { FragmentKind::First }, complete,
            sampled: sampled.map(|(rule, one_in)| Sampled { rule: rule.into(), one_in }), sampled_by_application,
            remote_link,
        }
    }
}

prop_compose! {
    fn batch()(stage in 0..3_usize, partition: u32, epoch: u64, first: u64, fragments in vec(fragment(), 0..8)) -> FragmentBatch {
        let stage = [StageId::Join, StageId::Assemble, StageId::Link][stage];
        FragmentBatch { origin: FragmentOrigin { stage, partition, incarnation: Incarnation(epoch) }, first, fragments }
    }
}

proptest! {
    #[test]
    fn fragments_survive_a_round_trip(batch in batch()) {
        let bytes = encode_fragments(&batch);
        let read = decode_fragments(&bytes);
        prop_assert_eq!(read.as_ref(), Ok(&batch));
        prop_assert_eq!(read.map(|read| encode_fragments(&read)), Ok(bytes), "encoding it again yields the same bytes");
    }

    #[test]
    fn record_length_respects_the_announced_bound(batch in batch()) {
        let mut writer = FragmentWriter::begin(batch.origin, batch.first);
        for (n, fragment) in batch.fragments.iter().enumerate() {
            let bound = writer.bytes_with(fragment);
            writer.push(fragment);
            prop_assert!(writer.bytes_max() <= bound, "{} with fragment {n}, bound {bound}", writer.bytes_max());
        }
        let (bound, spans) = (writer.bytes_max(), batch.fragments.iter().map(|fragment| fragment.spans.len()).sum());
        prop_assert_eq!(writer.count(), FragmentCount { fragments: batch.fragments.len(), spans });
        let bytes = writer.end();
        prop_assert!(bytes.len() <= bound && bytes.capacity() == bound, "{} long, bound {bound}", bytes.len());
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode_fragments(&bytes);
    }

    #[test]
    fn corrupt_batch_does_not_panic(
        batch in batch(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut: prop::sample::Index
    ) {
        let mut bytes = encode_fragments(&batch);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode_fragments(&bytes);
        let _ = decode_fragments(&bytes[..cut.index(bytes.len())]);
    }
}

/// Returns an fsync through a file system with the commit that it waited for, and a late bio of
/// another trace. `golden/fragments-v1.bin` holds it.
fn sample_batch() -> FragmentBatch {
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
    FragmentBatch {
        origin: FragmentOrigin {
            stage: StageId::Assemble,
            partition: 11,
            incarnation: Incarnation(0xfeed_f00d_dead_beef),
        },
        first: 41,
        fragments: vec![
            TraceFragment {
                trace,
                spans: vec![call, below],
                kind: FragmentKind::First,
                complete: true,
                sampled: Some(Sampled { rule: "one in 100".into(), one_in: 100 }),
                sampled_by_application: false,
                remote_link: RemoteLink::None,
            },
            TraceFragment {
                trace: other,
                spans: vec![Span { trace: other, ..bio.clone() }, bio],
                kind: FragmentKind::Late,
                complete: false,
                sampled: None,
                sampled_by_application: false,
                remote_link: RemoteLink::None,
            },
        ],
    }
}

/// Bytes of version 1 as first recorded. A change here changes stored records, which requires a new
/// version.
#[test]
fn fragment_batch_bytes_are_stable() {
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/fragments-v1.bin");
        std::fs::write(path, encode_fragments(&sample_batch())).unwrap();
    }
    let golden = include_bytes!("../../../golden/fragments-v1.bin");
    assert_eq!(decode_fragments(golden), Ok(sample_batch()));
    assert_eq!(encode_fragments(&sample_batch()), golden, "encoded now");
}

/// Returns remote links between the stages. `golden/links-v1.bin` holds it.
fn sample_links() -> FragmentBatch {
    let clock = NodeClock {
        source: Source { node: NodeId(7), boot: BootId(8), epoch: StartEpoch(0xfeed_f00d_dead_beef) },
        anchor: ClockAnchor {
            monotonic: MonotonicNs(4_000_000_000),
            wallclock: WallclockNs(1_790_000_000_000_000_000),
            uncertainty: DurationNs(60),
            ..ClockAnchor::NONE
        },
    };
    let event = RpcEndpointEvent {
        span: SpanId(0x3c6e_f372_fe94_f82b),
        root: SpanId(0xbb67_ae85_84ca_a73b),
        side: RpcSide::Client,
        key: RpcKey {
            protocol: "nbd".into(),
            connection: "10.0.0.1:41234>10.0.0.2:10809".into(),
            cookie: 1 << 32 | 7,
        },
        unique: true,
        no_reply: false,
        begin: MonotonicNs(5_000_000_000),
        end: MonotonicNs(5_000_200_000),
    };
    let (client_trace, server_trace) = (TraceId(0x6a09 << 64 | 0xbb67), TraceId(0x510e << 64 | 0x9b05));
    let fragment = |trace, remote_link| TraceFragment {
        trace,
        spans: Vec::new(),
        kind: FragmentKind::First,
        complete: false,
        sampled: None,
        sampled_by_application: false,
        remote_link,
    };
    let reparented = Reparented {
        trace: client_trace,
        parent: event.span,
        rule: "nbd".into(),
        clock: ClockShift { shift: -1_234_567, error: DurationNs(25_000) },
    };
    FragmentBatch {
        origin: FragmentOrigin { stage: StageId::Link, partition: 3, incarnation: Incarnation(5) },
        first: 9,
        fragments: vec![
            fragment(
                client_trace,
                RemoteLink::Endpoint(
                    LinkEndpoint { event, trace: client_trace, clock, peer: None, image: None }.into(),
                ),
            ),
            fragment(server_trace, RemoteLink::Reparented(reparented.into())),
            fragment(server_trace, RemoteLink::PendingParent),
            fragment(client_trace, RemoteLink::Forwarded(1)),
        ],
    }
}

/// A trace that the application sampled. `golden/sampled-by-application-v1.bin` holds it.
#[test]
fn sampled_by_application_bytes_are_stable() {
    let mut batch = sample_batch();
    batch.fragments[1].sampled_by_application = true;
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/sampled-by-application-v1.bin");
        std::fs::write(path, encode_fragments(&batch)).unwrap();
    }
    let golden = include_bytes!("../../../golden/sampled-by-application-v1.bin");
    assert_eq!(decode_fragments(golden), Ok(batch.clone()));
    assert_eq!(encode_fragments(&batch), golden, "encoded now");
}

#[test]
fn remote_link_bytes_are_stable() {
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/links-v1.bin");
        std::fs::write(path, encode_fragments(&sample_links())).unwrap();
    }
    let golden = include_bytes!("../../../golden/links-v1.bin");
    assert_eq!(decode_fragments(golden), Ok(sample_links()));
    assert_eq!(encode_fragments(&sample_links()), golden, "encoded now");
}

#[test]
fn unknown_version_is_rejected() {
    let mut bytes = encode_fragments(&sample_batch());
    assert_eq!(bytes[..2], [1 << 3, VERSION as u8], "field 1 comes first");
    bytes[1] = 2;
    assert_eq!(decode_fragments(&bytes), Err(Malformed::Version(2)));
    assert_eq!(decode_fragments(&[]), Err(Malformed::Version(0)));
}

#[test]
fn unknown_field_is_ignored() {
    let mut bytes = encode_fragments(&sample_batch());
    // Field 1000, a varint.
    bytes.extend([0xc0, 0x3e, 0x07]);
    assert_eq!(decode_fragments(&bytes), Ok(sample_batch()));
}

#[test]
fn string_is_stored_once() {
    let bytes = encode_fragments(&sample_batch());
    let strings = |string: &[u8]| bytes.windows(string.len()).filter(|window| *window == string).count();
    assert_eq!(
        (strings(b"ext4"), strings(b"fsync"), strings(b"postgres")),
        (2, 1, 1),
        "ext4 is in the relation too"
    );
}

fn changed(change: fn(&mut message::FragmentBatch)) -> Malformed {
    use prost::Message;
    let mut message = message::FragmentBatch::decode(encode_fragments(&sample_batch()).as_slice()).unwrap();
    change(&mut message);
    decode_fragments(&message.encode_to_vec()).unwrap_err()
}

#[test]
fn error_names_the_column_of_wrong_length() {
    let wrong = |column, value| Malformed::Value { column, value };
    assert_eq!(changed(|m| m.stage = 0), wrong("FragmentBatch.stage", 0));
    assert_eq!(changed(|m| m.stage = 4), wrong("FragmentBatch.stage", 4));
    assert_eq!(changed(|m| m.fragments.flags[0] |= ENDPOINT), Malformed::Short("FragmentBatch.endpoints"));
    assert_eq!(
        changed(|m| m.fragments.flags[0] |= ENDPOINT | REPARENTED),
        wrong("Fragments.flags", 0b11_0110)
    );
    assert_eq!(changed(|m| m.fragments.spans[0] = 5), Malformed::Short("Spans.flags"));
    assert_eq!(changed(|m| m.fragments.spans[1] = 1), Malformed::Long("Spans.flags"));
    assert_eq!(changed(|m| m.spans.flags[0] |= KIND), wrong("Spans.flags", 0b11_0011));
    assert_eq!(changed(|m| m.spans.parent_index[0] = 2), wrong("Spans.parent_index", 2));
    assert_eq!(changed(|m| m.spans.parent_id.push(1)), Malformed::Long("Spans.parent_id"));
    assert_eq!(changed(|m| m.spans.name[0] = 99), wrong("Spans.name", 99));
    assert_eq!(changed(|m| m.tags.value[1] = 100), wrong("Tags.value", 99));
    assert_eq!(changed(|m| m.tags.number.clear()), Malformed::Short("Tags.number"));
    assert_eq!(changed(|m| m.links.span.clear()), Malformed::Short("Links.span"));
    assert_eq!(changed(|m| m.annotations.time.push(0)), Malformed::Long("Annotations.time"));
}

#[test]
fn short_record_with_a_repeated_long_string_is_rejected() {
    let index = changed(|m| {
        m.strings.push("x".repeat(1 << 20));
        let long = m.strings.len() as u32 - 1;
        let often = COPIED_BYTES_MAX >> 20;
        m.tags.key.splice(0..0, std::iter::repeat_n(long, often + 1));
        m.tags.value.splice(0..0, std::iter::repeat_n(0, often + 1));
        m.tags.number.splice(0..0, std::iter::repeat_n(0, often + 1));
        m.spans.tags[0] += often as u32 + 1;
    });
    assert!(matches!(index, Malformed::Value { column: "Tags.key", .. }), "{index}");
}
