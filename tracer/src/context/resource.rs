//! What a process says of itself, from bytes of its memory: the one place where they become attributes.
//!
//! *In*: a payload, as [`published`](super::published) has read it: anybody may have written it. *Out*: a [`Resource`], or nothing where it is not
//! what the standard has (OTEP 4719, *Payload Format*: a `ProcessContext` of protobuf; open-telemetry/opentelemetry-specification,
//! oteps/profiles/4719-process-ctx.md at 34f27fdc). *Invariant*: what is kept of one process is bounded by the constants below, and what
//! is not kept is counted in it.
//!
//! *What is taken*: the attributes of its resource that are text, a number or a truth value. Lists, bytes and lists of keys and
//! values are left out: a tag has no form for them. Of the attributes beside the resource (`threadlocal.…`, OTEP 4947) the names of what
//! threads say: by number, as long as the schema is one of those that the records are read by.

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

/// Of threads' attributes: a number is a byte.
const THREAD_KEYS_MAX: usize = 256;
/// Where the names are, and by what they are to be read (OTEP 4947, *Process Context: Thread-Local Reference Data*).
const KEY_MAP: &str = "threadlocal.attribute_key_map";
const SCHEMA: &str = "threadlocal.schema_version";
/// Of drafts, and what it is called since the standard was merged. Others (`nodejs_v1_dev`) are of records that are found elsewhere.
const SCHEMAS: [&str; 3] = ["tlsdesc_v1_dev", "tlsdesc_v1", "tls_v1"];

/// Whatever else there is comes behind these.
const FIRST: &str = "service.";

/// What a process says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) attributes: Vec<Attribute>,
    /// What it says besides.
    pub(crate) left_out: u32,
    /// Names of what its threads say, by number; an empty one is none.
    pub(crate) thread_keys: Vec<Box<str>>,
}

/// opentelemetry/proto/{processcontext,resource,common}, as far as it is looked at.
#[derive(Clone, PartialEq, Message)]
struct ProcessContext {
    #[prost(message, optional, tag = "1")]
    resource: Option<Attributes>,
    #[prost(message, repeated, tag = "2")]
    beside: Vec<KeyValue>,
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
    Truth(bool),
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

/// None of what is no `ProcessContext`.
pub(crate) fn decode(payload: &[u8]) -> Option<Resource> {
    let ProcessContext { resource, beside } = ProcessContext::decode(payload).ok()?;
    let mut said = resource.unwrap_or_default().attributes;
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
    resource.thread_keys = thread_keys(beside);
    Some(resource)
}

/// None where the threads' records are not those that are read. One that is no text, too long or behind all that is kept keeps its
/// place and has no name.
fn thread_keys(beside: Vec<KeyValue>) -> Vec<Box<str>> {
    let (mut schema, mut keys) = (String::new(), Vec::new());
    for KeyValue { key, value } in beside {
        match (&*key, value.and_then(|value| value.kind)) {
            (SCHEMA, Some(Kind::Text(said))) => schema = said,
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

/// None of what has no form as a tag, or is too long.
fn attribute(KeyValue { key, value }: KeyValue) -> Option<Attribute> {
    let value = match value?.kind? {
        Kind::Text(text) if text.len() > TEXT_BYTES_MAX => return None,
        Kind::Text(text) => AttributeValue::Text(text.into()),
        Kind::Truth(truth) => AttributeValue::Text(truth.to_string().into()),
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

    /// Beside the resource: a schema, and names of what threads say.
    fn beside(schema: &str, names: &[Vec<u8>]) -> Vec<u8> {
        let one = |key: &str, value: &[u8]| field(2, &[field(1, key.as_bytes()), field(2, value)].concat());
        let list: Vec<u8> = names.iter().flat_map(|name| field(1, name)).collect();
        [one(SCHEMA, &field(1, schema.as_bytes())), one(KEY_MAP, &field(5, &list))].concat()
    }

    fn name(name: &str) -> Vec<u8> {
        field(1, name.as_bytes())
    }

    fn keys(payload: &[u8]) -> Vec<Box<str>> {
        let resource = decode(payload).unwrap();
        assert_eq!((resource.attributes, resource.left_out), (Vec::new(), 0));
        resource.thread_keys
    }

    #[test]
    fn of_what_lies_beside_the_resource_the_names_of_what_threads_say_are_taken() {
        let names = [name("http.route"), vec![3 << 3, 7], name(""), name("user.id")];
        let expected = ["http.route", "", "", "user.id"].map(Box::from);
        for schema in SCHEMAS {
            assert_eq!(keys(&beside(schema, &names)), expected);
        }
        // Of records of another kind; without a list; of nothing that is known.
        assert!(keys(&beside("nodejs_v1_dev", &names)).is_empty());
        assert!(keys(&beside("tls_v1", &[])).is_empty());
        let schema = field(2, &[field(1, SCHEMA.as_bytes()), field(2, &field(1, b"tls_v1"))].concat());
        assert!(keys(&schema).is_empty());
        let other = field(2, &[field(1, b"anything"), field(2, &field(1, b"x"))].concat());
        assert_eq!(decode(&other), Some(Resource::default()));
        assert_eq!(decode(&[]), Some(Resource::default()));
    }

    /// What is not kept keeps its place: the names behind it are those of their own numbers.
    #[test]
    fn names_of_what_threads_say_are_bounded_and_keep_their_numbers() {
        let many: Vec<_> = (0..300).map(|n| name(&n.to_string())).collect();
        let kept = keys(&beside("tls_v1", &many));
        assert_eq!((kept.len(), &*kept[255]), (256, "255"));
        let long = |bytes| [name(&"x".repeat(bytes)), name("next")];
        let kept = |names: &[Vec<u8>]| {
            keys(&beside("tls_v1", names)).iter().map(|key| key.len()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&long(KEY_BYTES_MAX)), [KEY_BYTES_MAX, 4]);
        assert_eq!(kept(&long(KEY_BYTES_MAX + 1)), [0, 4]);
        let all = kept(&vec![name(&"x".repeat(100)); 60]);
        assert_eq!((all.iter().sum::<usize>(), all.len()), (4_000, 60));
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
            let names = vec![name("http.route"); copies];
            let mut bytes = [field(1, &one.repeat(copies)), beside("tls_v1", &names)].concat();
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
