//! A mapping's file, and what is wrong with it. configs/mappings/blkkin.toml says how it is written.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Why a mapping cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MappingError {
    /// It is no TOML, or has words that no mapping has.
    #[error("{0}")]
    Toml(String),
    /// A rule lacks something.
    #[error("the rule for `{event}` that is `{is}`: {what}")]
    Rule {
        /// Its event.
        event: String,
        /// What it makes.
        is: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// What an event means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Is {
    /// A span begins.
    Begin,
    /// It ends.
    End,
    /// The thread works for it.
    Enter,
    /// The thread works for it no longer.
    Leave,
    /// A moment.
    Event,
    /// A text about it.
    Text,
    /// A number about it.
    Number,
    /// Its name in a protocol.
    Meeting,
    /// Several of these, of any spans, as `blkkin:together` says them.
    Together,
    /// Nothing.
    Ignore,
}

/// Where a key is one span's alone.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// In a process.
    #[default]
    Process,
    /// In a thread.
    Thread,
    /// Everywhere.
    Everywhere,
}

/// Which side of a call a span is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KindWord {
    /// Work inside a program.
    Internal,
    /// It answers.
    Server,
    /// It asks.
    Client,
}

/// A value that a field is compared with.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Wanted {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

/// A file.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// All that fit are applied, in order.
    #[serde(default)]
    pub rule: Vec<Rule>,
}

/// What one kind of event means. Words that end in `_from`, and `span`, `parent`, `trace…`, `key`, `value`, `side`, `unique`,
/// `connection`, `cookie`, `words`, name fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file's own words, described in configs/mappings/blkkin.toml")]
pub struct Rule {
    pub event: String,
    pub is: Is,
    #[serde(default)]
    pub when: BTreeMap<String, Vec<Wanted>>,
    #[serde(default)]
    pub unless: BTreeMap<String, Vec<Wanted>>,
    #[serde(default)]
    pub first: bool,
    pub span: Option<String>,
    pub key: Option<Vec<String>>,
    #[serde(default)]
    pub scope: Scope,
    #[serde(default)]
    pub group: String,
    pub trace_hi: Option<String>,
    pub trace_lo: Option<String>,
    pub parent: Option<String>,
    pub traceparent: Option<String>,
    pub kind: Option<KindWord>,
    pub kind_from: Option<String>,
    pub on: Option<bool>,
    pub on_from: Option<String>,
    pub kept_per_million_from: Option<String>,
    pub name: Option<String>,
    pub name_from: Option<String>,
    pub service: Option<String>,
    pub service_from: Option<String>,
    pub status_from: Option<String>,
    pub key_name: Option<String>,
    pub key_name_from: Option<String>,
    pub value: Option<String>,
    pub side: Option<String>,
    pub unique: Option<String>,
    pub rule: Option<String>,
    pub rule_from: Option<String>,
    pub connection: Option<String>,
    pub cookie: Option<String>,
    pub words: Option<String>,
    #[serde(default)]
    pub annotate: BTreeMap<String, String>,
}

impl Mapping {
    /// Reads a file's text.
    pub fn read(text: &str) -> Result<Self, MappingError> {
        let mapping: Self = toml::from_str(text).map_err(|error| MappingError::Toml(error.to_string()))?;
        mapping.check()?;
        Ok(mapping)
    }

    /// That each rule has what it needs.
    pub(crate) fn check(&self) -> Result<(), MappingError> {
        self.rule.iter().try_for_each(Rule::check)
    }

    /// What is built in: `blkkin:*` and `zipkin:*`.
    pub fn built_in() -> Self {
        let read = |text| Self::read(text).expect("invariant: a test reads the files that are built in");
        let rule = [super::BLKKIN, super::ZIPKIN].into_iter().flat_map(|text| read(text).rule).collect();
        Self { rule }
    }

    /// The events that a session has to have for these rules. Where `published` is read in threads' own memory, they need not say in
    /// events what they work for, which is most of what a daemon has to say; who does not publish it says so all the same.
    pub fn events(&self, published: bool) -> Vec<String> {
        let not_needed: &[&str] = match published {
            true => &["blkkin:enter", "blkkin:leave", "blkkin:turn"],
            false => &["blkkin:unseen_enter", "blkkin:unseen_leave"],
        };
        let events = self.rule.iter().map(|rule| rule.event.clone());
        let mut events: Vec<_> = events.filter(|event| !not_needed.contains(&event.as_str())).collect();
        events.sort();
        events.dedup();
        events
    }

    /// These rules, and then `other`'s.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.rule.extend(other.rule);
        self
    }
}

impl Rule {
    /// True if it is about events of this name.
    pub fn fits(&self, name: &str) -> bool {
        match self.event.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => self.event == name,
        }
    }

    fn check(&self) -> Result<(), MappingError> {
        let wrong = |what| {
            Err(MappingError::Rule {
                event: self.event.clone(),
                is: format!("{:?}", self.is).to_lowercase(),
                what,
            })
        };
        if !self.event.contains(':') && self.event != "*" {
            return wrong("events are called provider:name");
        }
        if self.is == Is::Together {
            return if self.words.is_none() { wrong("`words` is missing") } else { Ok(()) };
        }
        if self.is != Is::Ignore && self.span.is_none() && self.key.is_none() {
            return wrong("`span` or `key` has to say whose it is");
        }
        if self.span.is_some() && self.key.is_some() {
            return wrong("`span` and `key` are two answers to one question");
        }
        match self.is {
            Is::Begin | Is::Event if self.name.is_none() && self.name_from.is_none() => {
                wrong("`name` or `name_from` is missing")
            }
            Is::Text | Is::Number if self.key_name.is_none() && self.key_name_from.is_none() => {
                wrong("`key_name` or `key_name_from` is missing")
            }
            Is::Text | Is::Number if self.value.is_none() => wrong("`value` is missing"),
            Is::Meeting if self.rule.is_none() && self.rule_from.is_none() => {
                wrong("`rule` or `rule_from` is missing")
            }
            Is::Meeting if self.side.is_none() || self.connection.is_none() || self.cookie.is_none() => {
                wrong("`side`, `connection` and `cookie` are needed")
            }
            _ if self.first && self.is != Is::Begin => wrong("`first` is for a begin"),
            _ if self.traceparent.is_some() && self.is != Is::Begin => wrong("`traceparent` is for a begin"),
            _ => Ok(()),
        }
    }
}
