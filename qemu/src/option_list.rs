//! An argument of QEMU: `key=value,key=value` or a JSON object.
//!
//! *In*: the text of an argument. *Out*: values by key. A nested JSON object has dotted keys, as
//! QEMU has them: `{"cache": {"direct": true}}` is `cache.direct=on`.
//!
//! Source: QEMU's manual (qemu(1)) and util/keyval.c: a comma in a value is doubled, and the first
//! value may lack its key.

use std::collections::BTreeMap;

use serde_json::Value;

/// Maximum depth of JSON objects; QEMU's own chains of block nodes are not deeper.
const DEPTH_MAX: usize = 16;

/// Options of one argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OptionList(BTreeMap<String, String>);

impl OptionList {
    /// Parses an argument. A first value without a key gets `implied`.
    pub(crate) fn parse(text: &str, implied: &str) -> OptionList {
        if text.starts_with('{') {
            return OptionList::json(text);
        }
        let mut options = OptionList::default();
        for (n, part) in split_at_commas(text).into_iter().enumerate() {
            match part.split_once('=') {
                Some((key, value)) => options.set(key, value),
                None if n == 0 => options.set(implied, &part),
                // A flag: `-name web,debug-threads`.
                None => options.set(&part, "on"),
            }
        }
        options
    }

    /// Parses a JSON object; other JSON has no options.
    pub(crate) fn json(text: &str) -> OptionList {
        let mut options = OptionList::default();
        if let Ok(value @ Value::Object(_)) = serde_json::from_str(text) {
            options.add("", &value, 0);
        }
        options
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub(crate) fn is(&self, key: &str, value: &str) -> bool {
        self.get(key) == Some(value)
    }

    fn set(&mut self, key: &str, value: &str) {
        self.0.insert(key.to_owned(), value.to_owned());
    }

    fn add(&mut self, key: &str, value: &Value, depth: usize) {
        match value {
            Value::Object(object) if depth < DEPTH_MAX => {
                for (name, value) in object {
                    let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                    self.add(&key, value, depth + 1);
                }
            }
            Value::String(text) => self.set(key, text),
            Value::Bool(true) => self.set(key, "on"),
            Value::Bool(false) => self.set(key, "off"),
            Value::Number(number) => self.set(key, &number.to_string()),
            Value::Object(_) | Value::Array(_) | Value::Null => {}
        }
    }
}

/// Splits a text at its single commas; a doubled comma is part of a value.
fn split_at_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(next) = rest.next() {
        if next == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(next);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_found_by_key() {
        let list = OptionList::parse("guest=web1,debug-threads=on", "guest");
        assert!(list.is("guest", "web1") && list.is("debug-threads", "on"));
        assert!(OptionList::parse("web1", "guest").is("guest", "web1"));
        assert!(OptionList::parse("file=/a,,b=c,format=raw", "file").is("file", "/a,b=c"));
        assert_eq!(OptionList::parse("", "guest").get("guest"), Some(""));
    }

    #[test]
    fn nested_objects_have_dotted_keys() {
        let text = r#"{"driver":"qcow2","file":{"driver":"file","filename":"/a,b"},"cache":{"direct":true}}"#;
        let list = OptionList::parse(text, "driver");
        assert!(
            list.is("driver", "qcow2") && list.is("file.filename", "/a,b") && list.is("cache.direct", "on")
        );
        for text in ["{", "{}", "[1]", r#"{"a":[1],"b":null}"#] {
            assert_eq!(OptionList::json(text), OptionList::default(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn values_with_commas_survive(values in prop::collection::vec("[a-z,=/ ]{0,12}", 1..6)) {
            let text = values.iter().enumerate();
            let text = text.map(|(n, value)| format!("k{n}={}", value.replace(',', ",,"))).collect::<Vec<_>>();
            let list = OptionList::parse(&text.join(","), "k");
            for (n, value) in values.iter().enumerate() {
                prop_assert_eq!(list.get(&format!("k{n}")), Some(value.as_str()));
            }
        }
    }
}
