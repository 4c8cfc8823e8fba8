//! What a process says of itself, from bytes of its memory: the one place where they become attributes.
//!
//! *In*: a payload, as [`published`](super::published) has read it: anybody may have written it. *Out*: a [`Resource`], or nothing where it is not
//! what the standard has (OTEP 4719, *Payload Format*: a `ProcessContext` of protobuf; open-telemetry/opentelemetry-specification,
//! oteps/profiles/4719-process-ctx.md at 34f27fdc). *Invariant*: what is kept of one process is bounded by the constants below, and what
//! is not kept is counted in it.
//!
//! *What is taken*: the attributes of its resource that are text, a number or a truth value. Lists, bytes and lists of keys and
//! values are left out: a tag has no form for them. The attributes beside the resource (`threadlocal.…`) tell readers how to read
//! threads, and nothing of the process: they are not looked at.

use std::collections::HashSet;

use blkkin_wire::process::{Attribute, AttributeValue};
use prost::{Message, Oneof};

/// Attributes of a process: OpenTelemetry's SDKs say 5 to 20.
const ATTRIBUTES_MAX: usize = 32;
/// Bytes of a key.
const KEY_BYTES_MAX: usize = 128;
/// Bytes of a text.
const TEXT_BYTES_MAX: usize = 1_024;
/// Bytes of all keys and texts: they go with each call's span.
const ALL_BYTES_MAX: usize = 4_096;

/// Whatever else there is comes behind these.
const FIRST: &str = "service.";

/// What a process says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) attributes: Vec<Attribute>,
    /// What it says besides.
    pub(crate) left_out: u32,
}

/// opentelemetry/proto/{processcontext,resource,common}, as far as it is looked at.
#[derive(Clone, PartialEq, Message)]
struct ProcessContext {
    #[prost(message, optional, tag = "1")]
    resource: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Truth(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(double, tag = "4")]
    Real(f64),
}

/// None of what is no `ProcessContext`.
pub(crate) fn decode(payload: &[u8]) -> Option<Resource> {
    let mut said = ProcessContext::decode(payload).ok()?.resource.unwrap_or_default().attributes;
    said.sort_by_key(|one| !one.key.starts_with(FIRST));
    let (mut resource, mut keys, mut bytes) = (Resource::default(), HashSet::new(), 0);
    for one in said {
        let attribute = attribute(one).filter(|attribute| !keys.contains(&attribute.key));
        let taken = attribute.filter(|attribute| {
            let more = bytes + length(attribute);
            resource.attributes.len() < ATTRIBUTES_MAX && more <= ALL_BYTES_MAX
        });
        match taken {
            Some(attribute) => {
                bytes += length(&attribute);
                keys.insert(attribute.key.clone());
                resource.attributes.push(attribute);
            }
            None => resource.left_out += 1,
        }
    }
    Some(resource)
}

/// None of what has no form as a tag, or is too long.
fn attribute(KeyValue { key, value }: KeyValue) -> Option<Attribute> {
    let value = match value?.kind? {
        Kind::Text(text) if text.len() > TEXT_BYTES_MAX => return None,
        Kind::Text(text) => AttributeValue::Text(text.into()),
        Kind::Truth(truth) => AttributeValue::Text(truth.to_string().into()),
        Kind::Number(number) => AttributeValue::Number(number),
        Kind::Real(real) => AttributeValue::Text(real.to_string().into()),
    };
    (!key.is_empty() && key.len() <= KEY_BYTES_MAX).then(|| Attribute { key: key.into(), value })
}

fn length(attribute: &Attribute) -> usize {
    attribute.key.len()
        + match &attribute.value {
            AttributeValue::Text(text) => text.len(),
            AttributeValue::Number(_) => size_of::<i64>(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        prost::encoding::encode_varint(bytes.len() as u64, &mut field);
        [&field, bytes].concat()
    }

    fn pair(key: &str, value: &[u8]) -> Vec<u8> {
        field(1, &[field(1, key.as_bytes()), field(2, value)].concat())
    }

    fn text(key: &str, value: &str) -> Vec<u8> {
        pair(key, &field(1, value.as_bytes()))
    }

    fn of(attributes: &[Vec<u8>]) -> Option<Resource> {
        decode(&field(1, &attributes.concat()))
    }

    fn kept(resource: &Resource) -> Vec<(&str, String)> {
        let say = |value: &AttributeValue| match value {
            AttributeValue::Text(text) => text.to_string(),
            AttributeValue::Number(number) => number.to_string(),
        };
        resource.attributes.iter().map(|one| (&*one.key, say(&one.value))).collect()
    }

    /// The bytes as the schema has them, written here by hand.
    #[test]
    fn text_numbers_and_truth_are_taken_and_the_services_own_come_first() {
        let attributes = [
            text("host.name", "web-1"),
            pair("shard", &[3 << 3, 7]),
            pair("ready", &[2 << 3, 1]),
            pair("load", &[&[4 << 3 | 1][..], &0.5_f64.to_le_bytes()].concat()),
            text("service.name", "shop"),
            // A list of one text; no value at all; the same key again.
            pair("list", &field(5, &field(1, &field(1, b"x")))),
            field(1, &field(1, b"nothing")),
            text("host.name", "web-2"),
        ];
        let resource = of(&attributes).unwrap();
        let expected = [
            ("service.name", "shop"),
            ("host.name", "web-1"),
            ("shard", "7"),
            ("ready", "true"),
            ("load", "0.5"),
        ];
        assert_eq!(kept(&resource), expected.map(|(key, value)| (key, value.to_owned())));
        assert_eq!(resource.left_out, 3);
    }

    #[test]
    fn what_lies_beside_the_resource_is_not_looked_at() {
        let beside =
            field(2, &[field(1, b"threadlocal.schema_version"), field(2, &field(1, b"v1"))].concat());
        assert_eq!(decode(&beside), Some(Resource::default()));
        assert_eq!(decode(&[]), Some(Resource::default()));
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_rest_is_counted() {
        let many: Vec<_> = (0..100).map(|n| text(&format!("key{n}"), "x")).collect();
        let resource = of(&many).unwrap();
        assert_eq!(
            (resource.attributes.len(), resource.left_out),
            (ATTRIBUTES_MAX, 100 - ATTRIBUTES_MAX as u32)
        );
        let long = |bytes| of(&[text("key", &"x".repeat(bytes))]).unwrap().attributes.len();
        assert_eq!((long(TEXT_BYTES_MAX), long(TEXT_BYTES_MAX + 1)), (1, 0));
        let all: Vec<_> = (0..8).map(|n| text(&format!("key{n}"), &"x".repeat(1_000))).collect();
        assert_eq!(of(&all).unwrap().attributes.len(), 4);
        let key = "k".repeat(KEY_BYTES_MAX + 1);
        assert_eq!(of(&[text(&key, "x"), text("", "x")]).unwrap().left_out, 2);
    }

    #[test]
    fn what_is_no_process_context_is_none() {
        // Text that is no UTF-8; a length that lies; and a resource by itself, as drafts of the standard had it.
        assert_eq!(of(&[field(1, &[field(1, &[0xff]), field(2, &[])].concat())]), None);
        assert_eq!(decode(&[0x0a, 0x7f, 1]), None);
        assert_eq!(decode(&text("service.name", "shop")), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_understood_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            decode(&bytes);
        }

        #[test]
        fn a_payload_with_bytes_changed_is_bounded_all_the_same(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), copies in 1..60usize
        ) {
            let one = [text("service.name", "shop"), pair("shard", &[3 << 3, 7])].concat();
            let mut bytes = field(1, &one.repeat(copies));
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(resource) = decode(&bytes) {
                prop_assert!(resource.attributes.len() <= ATTRIBUTES_MAX);
                prop_assert!(resource.attributes.iter().map(length).sum::<usize>() <= ALL_BYTES_MAX);
            }
        }
    }
}
