//! Format and validation of mapping files. configs/mappings/blkkin.toml explains the format.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Reason why a mapping is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MappingError {
    /// The text is not TOML, or has unknown keys.
    #[error("{0}")]
    Toml(String),
    /// A rule is incomplete.
    #[error("rule for `{event}` with is = `{kind}`: {problem}")]
    Rule {
        /// Rule's event.
        event: String,
        /// Value of `is`.
        kind: &'static str,
        /// Missing or invalid part.
        problem: &'static str,
    },
}

/// Meaning of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    /// Begin of a span.
    Begin,
    /// End of a span.
    End,
    /// The thread enters the span.
    Enter,
    /// The thread leaves the span.
    Leave,
    /// Point in time within a span.
    Event,
    /// Attribute with a text.
    Text,
    /// Attribute with a number.
    Number,
    /// Endpoint of a request.
    #[serde(rename = "rpc_endpoint", alias = "meeting")]
    RpcEndpoint,
    /// Several span events, as in `blkkin:together`.
    #[serde(alias = "together")]
    Batch,
    /// No meaning.
    Ignore,
}

impl RuleKind {
    /// Returns the value of `is` in the file.
    fn keyword(self) -> &'static str {
        match self {
            RuleKind::Begin => "begin",
            RuleKind::End => "end",
            RuleKind::Enter => "enter",
            RuleKind::Leave => "leave",
            RuleKind::Event => "event",
            RuleKind::Text => "text",
            RuleKind::Number => "number",
            RuleKind::RpcEndpoint => "rpc_endpoint",
            RuleKind::Batch => "batch",
            RuleKind::Ignore => "ignore",
        }
    }
}

/// Range in which a key is unique.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// A process.
    #[default]
    Process,
    /// A thread.
    Thread,
    /// Every process.
    Everywhere,
}

/// Role of a span in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleSpanKind {
    /// Work inside one program.
    Internal,
    /// Handles a request.
    Server,
    /// Sends a request.
    Client,
}

/// Value that a field is compared with.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum MatchValue {
    /// Number.
    Number(i64),
    /// Text.
    Text(String),
}

/// Names of one field in several versions of an event: a text, or a list of texts.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum FieldNames {
    /// Same name in each version.
    One(String),
    /// Names in order: the first one that an event has is used.
    Several(Vec<String>),
}

impl FieldNames {
    /// Returns the names in their order.
    pub fn as_slice(&self) -> &[String] {
        match self {
            FieldNames::One(name) => std::slice::from_ref(name),
            FieldNames::Several(names) => names,
        }
    }
}

/// Mapping file.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Rules. All that match an event are applied, in order.
    #[serde(default)]
    pub rule: Vec<Rule>,
}

/// Meaning of one kind of event. Keys that end in `_from` name fields, and so do `span`, `parent`,
/// `trace…`, `key`, `value`, `side`, `unique`, `connection`, `cookie` and `words`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file's own words, described in configs/mappings/blkkin.toml")]
pub struct Rule {
    pub event: String,
    pub is: RuleKind,
    #[serde(default)]
    pub when: BTreeMap<String, Vec<MatchValue>>,
    #[serde(default)]
    pub unless: BTreeMap<String, Vec<MatchValue>>,
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
    pub kind: Option<RuleSpanKind>,
    pub kind_from: Option<String>,
    pub on: Option<bool>,
    pub on_from: Option<String>,
    #[serde(alias = "kept_per_million_from")]
    pub sampled_per_million_from: Option<FieldNames>,
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
    #[serde(alias = "rule")]
    pub protocol: Option<String>,
    #[serde(alias = "rule_from")]
    pub protocol_from: Option<String>,
    pub connection: Option<String>,
    pub cookie: Option<String>,
    pub words: Option<String>,
    #[serde(default)]
    pub annotate: BTreeMap<String, String>,
}

impl Mapping {
    /// Parses a mapping file.
    pub fn read(text: &str) -> Result<Self, MappingError> {
        let mapping: Self = toml::from_str(text).map_err(|error| MappingError::Toml(error.to_string()))?;
        mapping.check()?;
        Ok(mapping)
    }

    /// Returns an error if a rule is incomplete.
    pub(crate) fn check(&self) -> Result<(), MappingError> {
        self.rule.iter().try_for_each(Rule::check)
    }

    /// Returns the built-in mapping of `blkkin:*` and `zipkin:*`.
    pub fn built_in() -> Self {
        let read = |text| Self::read(text).expect("invariant: a test parses the built-in files");
        let rule = [super::BLKKIN, super::ZIPKIN].into_iter().flat_map(|text| read(text).rule).collect();
        Self { rule }
    }

    /// Returns the events that a session must enable for these rules. With `published`, blkkin
    /// reads thread contexts from the threads' memory. Events that repeat them are then omitted;
    /// they are most of a daemon's events. Threads that do not publish use the `unpublished_` events.
    pub fn events(&self, published: bool) -> Vec<String> {
        let omitted: &[&str] = match published {
            true => &["blkkin:enter", "blkkin:leave", "blkkin:switch_span", "blkkin:turn"],
            false => &[
                "blkkin:unpublished_enter",
                "blkkin:unpublished_leave",
                "blkkin:unseen_enter",
                "blkkin:unseen_leave",
            ],
        };
        let events = self.rule.iter().map(|rule| rule.event.clone());
        let mut events: Vec<_> = events.filter(|event| !omitted.contains(&event.as_str())).collect();
        events.sort();
        events.dedup();
        events
    }

    /// Returns these rules followed by the rules of `other`.
    #[must_use]
    pub fn chain(mut self, other: Self) -> Self {
        self.rule.extend(other.rule);
        self
    }
}

impl Rule {
    /// Returns true if the rule applies to events of this name.
    pub fn matches(&self, name: &str) -> bool {
        match self.event.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => self.event == name,
        }
    }

    fn check(&self) -> Result<(), MappingError> {
        let invalid =
            |problem| Err(MappingError::Rule { event: self.event.clone(), kind: self.is.keyword(), problem });
        if !self.event.contains(':') && self.event != "*" {
            return invalid("event names have the form provider:name");
        }
        if self.is == RuleKind::Batch {
            return if self.words.is_none() { invalid("`words` is missing") } else { Ok(()) };
        }
        if self.is != RuleKind::Ignore && self.span.is_none() && self.key.is_none() {
            return invalid("`span` or `key` is missing");
        }
        if self.span.is_some() && self.key.is_some() {
            return invalid("only one of `span` and `key` is allowed");
        }
        match self.is {
            RuleKind::Begin | RuleKind::Event if self.name.is_none() && self.name_from.is_none() => {
                invalid("`name` or `name_from` is missing")
            }
            RuleKind::Text | RuleKind::Number if self.key_name.is_none() && self.key_name_from.is_none() => {
                invalid("`key_name` or `key_name_from` is missing")
            }
            RuleKind::Text | RuleKind::Number if self.value.is_none() => invalid("`value` is missing"),
            RuleKind::RpcEndpoint if self.protocol.is_none() && self.protocol_from.is_none() => {
                invalid("`protocol` or `protocol_from` is missing")
            }
            RuleKind::RpcEndpoint
                if self.side.is_none() || self.connection.is_none() || self.cookie.is_none() =>
            {
                invalid("`side`, `connection` and `cookie` are required")
            }
            _ if self.first && self.is != RuleKind::Begin => invalid("`first` is only allowed with `begin`"),
            _ if self.traceparent.is_some() && self.is != RuleKind::Begin => {
                invalid("`traceparent` is only allowed with `begin`")
            }
            _ => Ok(()),
        }
    }
}
