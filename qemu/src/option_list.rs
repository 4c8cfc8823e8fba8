//! An argument of QEMU: `key=value,key=value` or a JSON object.
//!
//! *In*: the text of an argument. *Out*: values by key. A nested JSON object and an array have dotted
//! keys, as QEMU has them: `{"cache": {"direct": true}, "a": [1]}` is `cache.direct=on,a.0=1`.
//!
//! Source: QEMU's manual (qemu(1)) and util/keyval.c: a comma in a value is doubled, and the first
//! value may lack its key.

use std::collections::BTreeMap;

use serde_json::Value;

/// Maximum length of a key in bytes, without which a long key would be repeated in each key below
/// it. QEMU limits the parts of a key to 127 bytes each.
const KEY_MAX: usize = 128;

/// Returns the name of an option: `drive` of `-drive` or `--drive`.
pub(crate) fn option_name(argument: &str) -> Option<&str> {
    let name = argument.strip_prefix('-')?;
    Some(name.strip_prefix('-').unwrap_or(name))
}

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
            options.add("", &value);
        }
        options
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub(crate) fn is(&self, key: &str, value: &str) -> bool {
        self.get(key) == Some(value)
    }

    /// Returns whether a switch is on; none without a value that QEMU accepts.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "on" | "true" | "yes" | "y" => Some(true),
            "off" | "false" | "no" | "n" => Some(false),
            _ => None,
        }
    }

    /// Returns the I/O threads that a device names: one, or one for each of some queues.
    pub(crate) fn iothreads(&self) -> Vec<String> {
        let is_iothread = |key: &str| {
            key == "iothread" || key.starts_with("iothread-vq-mapping.") && key.ends_with(".iothread")
        };
        self.0.iter().filter(|(key, _)| is_iothread(key)).map(|(_, name)| name.clone()).collect()
    }

    fn set(&mut self, key: &str, value: &str) {
        if key.len() <= KEY_MAX {
            self.0.insert(key.to_owned(), value.to_owned());
        }
    }

    fn add(&mut self, key: &str, value: &Value) {
        if key.len() > KEY_MAX {
            return;
        }
        let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        match value {
            Value::Object(object) => object.iter().for_each(|(name, value)| self.add(&below(name), value)),
            Value::Array(array) => {
                array.iter().enumerate().for_each(|(n, value)| self.add(&below(&n.to_string()), value));
            }
            Value::String(text) => self.set(key, text),
            Value::Bool(true) => self.set(key, "on"),
            Value::Bool(false) => self.set(key, "off"),
            Value::Number(number) => self.set(key, &number.to_string()),
            // As `key=` without a value.
            Value::Null => self.set(key, ""),
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
        let list = OptionList::json(r#"{"a":[{"b":1},"c"],"d":null}"#);
        assert!(list.is("a.0.b", "1") && list.is("a.1", "c") && list.is("d", ""));
        let long = format!(r#"{{"{}":{{"b":1}}}}"#, "a".repeat(600));
        for text in ["{", "{}", "[1]", &long] {
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
