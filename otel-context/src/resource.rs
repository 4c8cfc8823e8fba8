//! Decoder of process context payloads.
//!
//! *In*: a payload read by [`process_context`](super::process_context), untrusted. *Out*: a
//! [`Resource`], or none if the payload is invalid (OTEP 4719, *Payload Format*: the protobuf
//! message `ProcessContext`; open-telemetry/opentelemetry-specification,
//! oteps/profiles/4719-process-ctx.md at 34f27fdc). *Invariant*: the data of one process are
//! bounded by the constants below, and dropped attributes are counted.
//!
//! *Decoded*: resource attributes with a string, number or boolean value. Arrays, bytes and
//! key-value lists are dropped, since a tag has no form for them. Of the extra attributes
//! (`threadlocal.…`, OTEP 4947), the names of thread attribute keys, if the schema is one of those
//! that thread contexts are decoded by.

use std::collections::HashSet;

use prost::{Message, Oneof};

/// Maximum number of attributes. OpenTelemetry's SDKs set 5 to 20.
const ATTRIBUTES_MAX: usize = 32;
/// Maximum bytes of a key.
const KEY_BYTES_MAX: usize = 128;
/// Maximum bytes of a string.
const TEXT_BYTES_MAX: usize = 1_024;
/// Maximum bytes of all keys and strings, which each system call's span carries.
const ALL_BYTES_MAX: usize = 4_096;

/// Maximum number of thread attribute keys: an index is one byte.
const THREAD_KEYS_MAX: usize = 256;
/// Attributes with the key names and their schema (OTEP 4947, *Process Context: Thread-Local
/// Reference Data*).
const KEY_MAP: &str = "threadlocal.attribute_key_map";
const SCHEMA: &str = "threadlocal.schema_version";
/// Accepted schemas: those of the drafts, and of the merged standard. Others (`nodejs_v1_dev`)
/// describe records at another location.
const SCHEMAS: [&str; 3] = ["tlsdesc_v1_dev", "tlsdesc_v1", "tls_v1"];

/// Prefix of the attributes that come first.
const SERVICE_PREFIX: &str = "service.";

/// A decoded process context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// Attributes of the resource, those of the service first.
    pub attributes: Vec<Attribute>,
    /// Number of attributes that were dropped.
    pub dropped_attributes: u32,
    /// Names of thread attribute keys by index; empty for an unnamed key.
    pub thread_keys: Vec<Box<str>>,
}

/// A resource attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Key, such as `service.name`.
    pub key: Box<str>,
    /// Value.
    pub value: AttributeValue,
}

/// Value of an attribute. Booleans and floats are formatted as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(Box<str>),
    /// An integer.
    Number(i64),
}

/// Decoded part of opentelemetry/proto/{processcontext,resource,common}.
#[derive(Clone, PartialEq, Message)]
struct ProcessContext {
    #[prost(message, optional, tag = "1")]
    resource: Option<Attributes>,
    #[prost(message, repeated, tag = "2")]
    extra: Vec<KeyValue>,
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
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(double, tag = "4")]
    Real(f64),
    #[prost(message, tag = "5")]
    List(List),
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    values: Vec<AnyValue>,
}

/// Decodes a payload; none if it is not a `ProcessContext`.
pub fn decode(payload: &[u8]) -> Option<Resource> {
    let ProcessContext { resource, extra } = ProcessContext::decode(payload).ok()?;
    let mut attributes = resource.unwrap_or_default().attributes;
    attributes.sort_by_key(|one| !one.key.starts_with(SERVICE_PREFIX));
    let (mut resource, mut keys, mut bytes) = (Resource::default(), HashSet::new(), 0);
    for one in attributes {
        let attribute = attribute(one).filter(|attribute| !keys.contains(&attribute.key));
        let accepted = attribute.filter(|attribute| {
            let more = bytes + length(attribute);
            resource.attributes.len() < ATTRIBUTES_MAX && more <= ALL_BYTES_MAX
        });
        match accepted {
            Some(attribute) => {
                bytes += length(&attribute);
                keys.insert(attribute.key.clone());
                resource.attributes.push(attribute);
            }
            None => resource.dropped_attributes += 1,
        }
    }
    resource.thread_keys = thread_keys(extra);
    Some(resource)
}

/// Decodes the key names; none if the schema is not accepted. An entry that is not a string, too
/// long or beyond the limits keeps its index and stays unnamed.
fn thread_keys(extra: Vec<KeyValue>) -> Vec<Box<str>> {
    let (mut schema, mut keys) = (String::new(), Vec::new());
    for KeyValue { key, value } in extra {
        match (&*key, value.and_then(|value| value.kind)) {
            (SCHEMA, Some(Kind::Text(text))) => schema = text,
            (KEY_MAP, Some(Kind::List(list))) => keys = list.values,
            _ => {}
        }
    }
    if !SCHEMAS.contains(&&*schema) {
        return Vec::new();
    }
    let mut bytes = 0;
    let name = |value: AnyValue| {
        let Some(Kind::Text(name)) = value.kind else { return "".into() };
        bytes += name.len();
        if name.len() <= KEY_BYTES_MAX && bytes <= ALL_BYTES_MAX { name.into() } else { "".into() }
    };
    keys.into_iter().take(THREAD_KEYS_MAX).map(name).collect()
}

/// Decodes an attribute; none if it has no form as a tag or is too long.
fn attribute(KeyValue { key, value }: KeyValue) -> Option<Attribute> {
    let value = match value?.kind? {
        Kind::Text(text) if text.len() > TEXT_BYTES_MAX => return None,
        Kind::Text(text) => AttributeValue::Text(text.into()),
        Kind::Bool(bool_value) => AttributeValue::Text(bool_value.to_string().into()),
        Kind::Number(number) => AttributeValue::Number(number),
        Kind::Real(real) => AttributeValue::Text(real.to_string().into()),
        Kind::List(_) => return None,
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

    fn texts(resource: &Resource) -> Vec<(&str, String)> {
        let text_of = |value: &AttributeValue| match value {
            AttributeValue::Text(text) => text.to_string(),
            AttributeValue::Number(number) => number.to_string(),
        };
        resource.attributes.iter().map(|one| (&*one.key, text_of(&one.value))).collect()
    }

    /// Uses bytes encoded by hand, according to the schema.
    #[test]
    fn scalars_are_decoded_and_service_attributes_come_first() {
        let attributes = [
            text("host.name", "web-1"),
            pair("shard", &[3 << 3, 7]),
            pair("ready", &[2 << 3, 1]),
            pair("load", &[&[4 << 3 | 1][..], &0.5_f64.to_le_bytes()].concat()),
            text("service.name", "shop"),
            // An array of one string; no value at all; a repeated key.
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
        assert_eq!(texts(&resource), expected.map(|(key, value)| (key, value.to_owned())));
        assert_eq!(resource.dropped_attributes, 3);
    }

    /// Encodes extra attributes: a schema, and key names.
    fn extra(schema: &str, names: &[Vec<u8>]) -> Vec<u8> {
        let one = |key: &str, value: &[u8]| field(2, &[field(1, key.as_bytes()), field(2, value)].concat());
        let list: Vec<u8> = names.iter().flat_map(|name| field(1, name)).collect();
        [one(SCHEMA, &field(1, schema.as_bytes())), one(KEY_MAP, &field(5, &list))].concat()
    }

    fn name(name: &str) -> Vec<u8> {
        field(1, name.as_bytes())
    }

    fn keys(payload: &[u8]) -> Vec<Box<str>> {
        let resource = decode(payload).unwrap();
        assert_eq!((resource.attributes, resource.dropped_attributes), (Vec::new(), 0));
        resource.thread_keys
    }

    #[test]
    fn thread_keys_are_decoded_from_extra_attributes() {
        let names = [name("http.route"), vec![3 << 3, 7], name(""), name("user.id")];
        let expected = ["http.route", "", "", "user.id"].map(Box::from);
        for schema in SCHEMAS {
            assert_eq!(keys(&extra(schema, &names)), expected);
        }
        // Another schema; no key names; unknown attributes only.
        assert!(keys(&extra("nodejs_v1_dev", &names)).is_empty());
        assert!(keys(&extra("tls_v1", &[])).is_empty());
        let schema = field(2, &[field(1, SCHEMA.as_bytes()), field(2, &field(1, b"tls_v1"))].concat());
        assert!(keys(&schema).is_empty());
        let other = field(2, &[field(1, b"anything"), field(2, &field(1, b"x"))].concat());
        assert_eq!(decode(&other), Some(Resource::default()));
        assert_eq!(decode(&[]), Some(Resource::default()));
    }

    /// A dropped name keeps its index, so later names keep theirs.
    #[test]
    fn thread_keys_are_bounded_and_keep_their_indexes() {
        let many: Vec<_> = (0..300).map(|n| name(&n.to_string())).collect();
        let names = keys(&extra("tls_v1", &many));
        assert_eq!((names.len(), &*names[255]), (256, "255"));
        let long = |bytes| [name(&"x".repeat(bytes)), name("next")];
        let lengths =
            |names: &[Vec<u8>]| keys(&extra("tls_v1", names)).iter().map(|key| key.len()).collect::<Vec<_>>();
        assert_eq!(lengths(&long(KEY_BYTES_MAX)), [KEY_BYTES_MAX, 4]);
        assert_eq!(lengths(&long(KEY_BYTES_MAX + 1)), [0, 4]);
        let all = lengths(&vec![name(&"x".repeat(100)); 60]);
        assert_eq!((all.iter().sum::<usize>(), all.len()), (4_000, 60));
    }

    #[test]
    fn attributes_are_bounded_and_dropped_ones_counted() {
        let many: Vec<_> = (0..100).map(|n| text(&format!("key{n}"), "x")).collect();
        let resource = of(&many).unwrap();
        assert_eq!(
            (resource.attributes.len(), resource.dropped_attributes),
            (ATTRIBUTES_MAX, 100 - ATTRIBUTES_MAX as u32)
        );
        let long = |bytes| of(&[text("key", &"x".repeat(bytes))]).unwrap().attributes.len();
        assert_eq!((long(TEXT_BYTES_MAX), long(TEXT_BYTES_MAX + 1)), (1, 0));
        let all: Vec<_> = (0..8).map(|n| text(&format!("key{n}"), &"x".repeat(1_000))).collect();
        assert_eq!(of(&all).unwrap().attributes.len(), 4);
        let key = "k".repeat(KEY_BYTES_MAX + 1);
        assert_eq!(of(&[text(&key, "x"), text("", "x")]).unwrap().dropped_attributes, 2);
    }

    #[test]
    fn invalid_payloads_are_rejected() {
        // Invalid UTF-8; a wrong length; and a bare resource, as in drafts of the standard.
        assert_eq!(of(&[field(1, &[field(1, &[0xff]), field(2, &[])].concat())]), None);
        assert_eq!(decode(&[0x0a, 0x7f, 1]), None);
        assert_eq!(decode(&text("service.name", "shop")), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            decode(&bytes);
        }

        #[test]
        fn corrupted_payload_is_bounded(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), copies in 1..60usize
        ) {
            let one = [text("service.name", "shop"), pair("shard", &[3 << 3, 7])].concat();
            let names = vec![name("http.route"); copies];
            let mut bytes = [field(1, &one.repeat(copies)), extra("tls_v1", &names)].concat();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(resource) = decode(&bytes) {
                prop_assert!(resource.attributes.len() <= ATTRIBUTES_MAX);
                prop_assert!(resource.attributes.iter().map(length).sum::<usize>() <= ALL_BYTES_MAX);
                prop_assert!(resource.thread_keys.iter().map(|key| key.len()).sum::<usize>() <= ALL_BYTES_MAX);
            }
        }
    }
}
