//! Binding of rules to a class of events: field names become indexes.
//!
//! *In*: rules and an event class. *Out*: bound rules, or the reason why a rule does not match.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::{FieldNames, MatchValue, Rule, RuleKind, RuleSpanKind, Scope};
use crate::span_event::SpanKind;
use blkkin_lttng_live::ctf::metadata::EventClass;
use blkkin_lttng_live::ctf::plan::FieldType;

/// Reason why a rule does not match a class of events.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// The field does not exist.
    #[error("{event} has no field `{field}` (it has {known})")]
    NoField {
        /// Event's name.
        event: String,
        /// Field in the rule.
        field: String,
        /// Fields of the event.
        known: String,
    },
    /// The field has another type.
    #[error("field `{field}` of {event} is not {expected}")]
    WrongType {
        /// Event's name.
        event: String,
        /// Field in the rule.
        field: String,
        /// Required type.
        expected: &'static str,
    },
}

/// Constant of a rule, or index of a field.
#[derive(Clone, Debug)]
pub(crate) enum RuleValue<T> {
    Constant(T),
    Field(usize),
}

/// Selection of the span that a rule applies to.
#[derive(Clone, Debug)]
pub(crate) enum SpanSelector {
    Id(usize),
    Key {
        fields: Vec<usize>,
        scope: Scope,
        group: u64,
    },
    /// Spans in the words of this field.
    Batch(usize),
}

/// Comparison of a field.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) field: usize,
    pub(crate) values: Vec<MatchValue>,
}

/// Rule with the indexes of its fields.
#[derive(Debug)]
pub(crate) struct BoundRule {
    pub(crate) rule_kind: RuleKind,
    pub(crate) when: Vec<Condition>,
    pub(crate) unless: Vec<Condition>,
    pub(crate) first: bool,
    pub(crate) selector: SpanSelector,
    pub(crate) trace_hi: Option<usize>,
    pub(crate) trace_lo: Option<usize>,
    pub(crate) parent: Option<usize>,
    /// Text with an optional `traceparent`.
    pub(crate) traceparent: Option<usize>,
    pub(crate) kind: RuleValue<SpanKind>,
    pub(crate) enter: RuleValue<bool>,
    pub(crate) sample_rate: Option<usize>,
    /// Name of a begin or event, or key of an attribute.
    pub(crate) name: RuleValue<Arc<str>>,
    /// Service; `None` for the process's name.
    pub(crate) service: Option<RuleValue<Arc<str>>>,
    pub(crate) status: Option<usize>,
    pub(crate) value: Option<usize>,
    pub(crate) side: Option<usize>,
    pub(crate) unique: Option<usize>,
    pub(crate) protocol: RuleValue<Arc<str>>,
    pub(crate) connection: Option<usize>,
    pub(crate) cookie: Option<usize>,
    pub(crate) annotate: Vec<(Arc<str>, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    Number,
    Text,
    Any,
    Numbers,
}

struct Binder<'c> {
    class: &'c EventClass,
}

/// Binds the rules that match `class`.
pub(crate) fn bind(rules: &[Rule], class: &EventClass) -> Result<Vec<BoundRule>, BindError> {
    let matching = rules.iter().filter(|rule| rule.matches(&class.name));
    let binder = Binder { class };
    matching.filter(|rule| rule.is != RuleKind::Ignore).map(|rule| binder.rule(rule)).collect()
}

impl Binder<'_> {
    fn rule(&self, rule: &Rule) -> Result<BoundRule, BindError> {
        let number = |field: &Option<String>| self.optional_field(field, FieldKind::Number);
        let text = |field: &Option<String>| self.optional_field(field, FieldKind::Text);
        let selector = match (&rule.span, &rule.key) {
            _ if rule.is == RuleKind::Batch => SpanSelector::Batch(
                self.field(rule.words.as_deref().unwrap_or_default(), FieldKind::Numbers)?,
            ),
            (Some(field), _) => SpanSelector::Id(self.field(field, FieldKind::Number)?),
            (None, key) => SpanSelector::Key {
                fields: self.fields(key.iter().flatten())?,
                scope: rule.scope,
                group: super::mapper::hash(0, rule.group.as_bytes()),
            },
        };
        let annotate = rule
            .annotate
            .iter()
            .map(|(key, field)| Ok((Arc::from(key.as_str()), self.field(field, FieldKind::Any)?)));
        let value = match rule.is {
            RuleKind::Number => number(&rule.value)?,
            // The older keyval of blkin has a text; a number is accepted as well.
            _ => self.optional_field(&rule.value, FieldKind::Any)?,
        };
        Ok(BoundRule {
            rule_kind: rule.is,
            when: self.conditions(&rule.when)?,
            unless: self.conditions(&rule.unless)?,
            first: rule.first,
            selector,
            trace_hi: number(&rule.trace_hi)?,
            trace_lo: number(&rule.trace_lo)?,
            parent: number(&rule.parent)?,
            traceparent: text(&rule.traceparent)?,
            kind: match &rule.kind_from {
                Some(field) => RuleValue::Field(self.field(field, FieldKind::Number)?),
                None => RuleValue::Constant(span_kind(rule.kind)),
            },
            enter: match &rule.on_from {
                Some(field) => RuleValue::Field(self.field(field, FieldKind::Number)?),
                None => RuleValue::Constant(rule.on.unwrap_or(false)),
            },
            sample_rate: self.versioned_field(rule.sampled_per_million_from.as_ref(), FieldKind::Number)?,
            name: match rule.is {
                RuleKind::Text | RuleKind::Number => self.rule_value(&rule.key_name, &rule.key_name_from)?,
                _ => self.rule_value(&rule.name, &rule.name_from)?,
            },
            service: match (&rule.service, &rule.service_from) {
                (None, None) => None,
                (constant, from) => Some(self.rule_value(constant, from)?),
            },
            status: number(&rule.status_from)?,
            value,
            side: number(&rule.side)?,
            unique: number(&rule.unique)?,
            protocol: self.rule_value(&rule.protocol, &rule.protocol_from)?,
            connection: text(&rule.connection)?,
            cookie: number(&rule.cookie)?,
            annotate: annotate.collect::<Result<_, _>>()?,
        })
    }

    fn conditions(&self, fields: &BTreeMap<String, Vec<MatchValue>>) -> Result<Vec<Condition>, BindError> {
        let bound = fields.iter().map(|(field, values)| {
            let expected = if values.iter().all(|one| matches!(one, MatchValue::Text(_))) {
                FieldKind::Text
            } else {
                FieldKind::Number
            };
            Ok(Condition { field: self.field(field, expected)?, values: values.clone() })
        });
        bound.collect()
    }

    fn rule_value(
        &self,
        constant: &Option<String>,
        from: &Option<String>,
    ) -> Result<RuleValue<Arc<str>>, BindError> {
        Ok(match from {
            Some(field) => RuleValue::Field(self.field(field, FieldKind::Text)?),
            None => RuleValue::Constant(Arc::from(constant.as_deref().unwrap_or_default())),
        })
    }

    fn optional_field(
        &self,
        field: &Option<String>,
        expected: FieldKind,
    ) -> Result<Option<usize>, BindError> {
        field.as_ref().map(|field| self.field(field, expected)).transpose()
    }

    /// Finds the first of a field's names that the event has; without one the last name is the error's.
    fn versioned_field(
        &self,
        names: Option<&FieldNames>,
        expected: FieldKind,
    ) -> Result<Option<usize>, BindError> {
        let names = names.map(FieldNames::as_slice).unwrap_or_default();
        let Some((last, earlier)) = names.split_last() else { return Ok(None) };
        let payload = self.class.payload.as_ref();
        let has = |name: &&String| payload.is_some_and(|plan| plan.field(name).is_some());
        self.field(earlier.iter().find(has).unwrap_or(last), expected).map(Some)
    }

    fn fields<'f>(&self, fields: impl Iterator<Item = &'f String>) -> Result<Vec<usize>, BindError> {
        fields.map(|field| self.field(field, FieldKind::Any)).collect()
    }

    fn field(&self, field: &str, expected: FieldKind) -> Result<usize, BindError> {
        let event = self.class.name.to_string();
        let payload = self.class.payload.as_ref();
        let Some((index, info)) = payload.and_then(|plan| plan.field(field)) else {
            let known: Vec<&str> = payload.into_iter().flat_map(|plan| plan.names()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(BindError::NoField { event, field: field.to_owned(), known });
        };
        let actual = match info.field_type {
            FieldType::Int { .. } | FieldType::Enum { .. } => FieldKind::Number,
            FieldType::Text => FieldKind::Text,
            // Elements are checked when they are read.
            FieldType::Sequence => FieldKind::Numbers,
            _ => FieldKind::Any,
        };
        let wrong_type = |expected| Err(BindError::WrongType { event, field: field.to_owned(), expected });
        match (expected, actual) {
            (FieldKind::Number, FieldKind::Number) | (FieldKind::Text, FieldKind::Text) => Ok(index),
            (FieldKind::Any, FieldKind::Number | FieldKind::Text)
            | (FieldKind::Numbers, FieldKind::Numbers) => Ok(index),
            (FieldKind::Numbers, _) => wrong_type("a sequence"),
            (FieldKind::Number, _) => wrong_type("an integer"),
            (FieldKind::Text, _) => wrong_type("a text"),
            (FieldKind::Any, _) => wrong_type("a number or text"),
        }
    }
}

fn span_kind(kind: Option<RuleSpanKind>) -> SpanKind {
    match kind {
        None | Some(RuleSpanKind::Internal) => SpanKind::Local,
        Some(RuleSpanKind::Server) => SpanKind::Server,
        Some(RuleSpanKind::Client) => SpanKind::Client,
    }
}
