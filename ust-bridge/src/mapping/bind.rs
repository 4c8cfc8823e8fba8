//! Rules bound to a class of events: names of fields become their places.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::{Is, KindWord, Rule, Scope, Wanted};
use crate::ctf::metadata::EventClass;
use crate::ctf::plan::What;
use crate::facts::Kind;

/// Why a rule does not fit a class of events.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// There is no such field.
    #[error("{event} has no field `{field}` (it has {known})")]
    NoField {
        /// The event.
        event: String,
        /// What the rule names.
        field: String,
        /// What there is.
        known: String,
    },
    /// It is of another type.
    #[error("the field `{field}` of {event} is no {wanted}")]
    OtherType {
        /// The event.
        event: String,
        /// The field.
        field: String,
        /// What it should be.
        wanted: &'static str,
    },
}

/// Said by the rule, or by a field.
#[derive(Clone, Debug)]
pub(crate) enum Said<T> {
    Here(T),
    Field(usize),
}

/// What a span is known by.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    Id(usize),
    Key {
        fields: Vec<usize>,
        scope: Scope,
        group: u64,
    },
    /// Those that the words in this field name.
    Words(usize),
}

/// A field that is compared.
#[derive(Clone, Debug)]
pub(crate) struct When {
    pub(crate) field: usize,
    pub(crate) wanted: Vec<Wanted>,
}

/// A rule with its fields' places.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) is: Is,
    pub(crate) when: Vec<When>,
    pub(crate) unless: Vec<When>,
    pub(crate) first: bool,
    pub(crate) whose: Whose,
    pub(crate) trace_hi: Option<usize>,
    pub(crate) trace_lo: Option<usize>,
    pub(crate) parent: Option<usize>,
    /// A text that says trace and parent, where it does.
    pub(crate) traceparent: Option<usize>,
    pub(crate) kind: Said<Kind>,
    pub(crate) on: Said<bool>,
    pub(crate) kept_per_million: Option<usize>,
    /// A begin's or moment's name, or an annotation's key.
    pub(crate) name: Said<Arc<str>>,
    /// None: the process's name.
    pub(crate) service: Option<Said<Arc<str>>>,
    pub(crate) status: Option<usize>,
    pub(crate) value: Option<usize>,
    pub(crate) side: Option<usize>,
    pub(crate) unique: Option<usize>,
    pub(crate) rule: Said<Arc<str>>,
    pub(crate) connection: Option<usize>,
    pub(crate) cookie: Option<usize>,
    pub(crate) annotate: Vec<(Arc<str>, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Number,
    Text,
    Any,
    Numbers,
}

struct Binder<'c> {
    class: &'c EventClass,
}

/// The rules that fit `class`, bound to it.
pub(crate) fn bind(rules: &[Rule], class: &EventClass) -> Result<Vec<Bound>, BindError> {
    let fitting = rules.iter().filter(|rule| rule.fits(&class.name));
    let binder = Binder { class };
    fitting.filter(|rule| rule.is != Is::Ignore).map(|rule| binder.rule(rule)).collect()
}

impl Binder<'_> {
    fn rule(&self, rule: &Rule) -> Result<Bound, BindError> {
        let number = |field: &Option<String>| self.maybe(field, Type::Number);
        let text = |field: &Option<String>| self.maybe(field, Type::Text);
        let whose = match (&rule.span, &rule.key) {
            _ if rule.is == Is::Together => {
                Whose::Words(self.field(rule.words.as_deref().unwrap_or_default(), Type::Numbers)?)
            }
            (Some(field), _) => Whose::Id(self.field(field, Type::Number)?),
            (None, key) => Whose::Key {
                fields: self.fields(key.iter().flatten())?,
                scope: rule.scope,
                group: super::mapper::hash(0, rule.group.as_bytes()),
            },
        };
        let annotate = rule
            .annotate
            .iter()
            .map(|(key, field)| Ok((Arc::from(key.as_str()), self.field(field, Type::Any)?)));
        let value = match rule.is {
            Is::Number => number(&rule.value)?,
            // The older keyval of blkin has a text; what writes a number there is shown all the same.
            _ => self.maybe(&rule.value, Type::Any)?,
        };
        Ok(Bound {
            is: rule.is,
            when: self.compared(&rule.when)?,
            unless: self.compared(&rule.unless)?,
            first: rule.first,
            whose,
            trace_hi: number(&rule.trace_hi)?,
            trace_lo: number(&rule.trace_lo)?,
            parent: number(&rule.parent)?,
            traceparent: text(&rule.traceparent)?,
            kind: match &rule.kind_from {
                Some(field) => Said::Field(self.field(field, Type::Number)?),
                None => Said::Here(kind(rule.kind)),
            },
            on: match &rule.on_from {
                Some(field) => Said::Field(self.field(field, Type::Number)?),
                None => Said::Here(rule.on.unwrap_or(false)),
            },
            kept_per_million: number(&rule.kept_per_million_from)?,
            name: match rule.is {
                Is::Text | Is::Number => self.said(&rule.key_name, &rule.key_name_from)?,
                _ => self.said(&rule.name, &rule.name_from)?,
            },
            service: match (&rule.service, &rule.service_from) {
                (None, None) => None,
                (here, from) => Some(self.said(here, from)?),
            },
            status: number(&rule.status_from)?,
            value,
            side: number(&rule.side)?,
            unique: number(&rule.unique)?,
            rule: self.said(&rule.rule, &rule.rule_from)?,
            connection: text(&rule.connection)?,
            cookie: number(&rule.cookie)?,
            annotate: annotate.collect::<Result<_, _>>()?,
        })
    }

    fn compared(&self, with: &BTreeMap<String, Vec<Wanted>>) -> Result<Vec<When>, BindError> {
        let bound = with.iter().map(|(field, wanted)| {
            let of = if wanted.iter().all(|one| matches!(one, Wanted::Text(_))) {
                Type::Text
            } else {
                Type::Number
            };
            Ok(When { field: self.field(field, of)?, wanted: wanted.clone() })
        });
        bound.collect()
    }

    fn said(&self, here: &Option<String>, from: &Option<String>) -> Result<Said<Arc<str>>, BindError> {
        Ok(match from {
            Some(field) => Said::Field(self.field(field, Type::Text)?),
            None => Said::Here(Arc::from(here.as_deref().unwrap_or_default())),
        })
    }

    fn maybe(&self, field: &Option<String>, of: Type) -> Result<Option<usize>, BindError> {
        field.as_ref().map(|field| self.field(field, of)).transpose()
    }

    fn fields<'f>(&self, fields: impl Iterator<Item = &'f String>) -> Result<Vec<usize>, BindError> {
        fields.map(|field| self.field(field, Type::Any)).collect()
    }

    fn field(&self, field: &str, of: Type) -> Result<usize, BindError> {
        let event = self.class.name.to_string();
        let payload = self.class.payload.as_ref();
        let Some((index, info)) = payload.and_then(|plan| plan.field(field)) else {
            let known: Vec<&str> = payload.into_iter().flat_map(|plan| plan.names()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(BindError::NoField { event, field: field.to_owned(), known });
        };
        let is = match info.what {
            What::Int { .. } | What::Enum { .. } => Type::Number,
            What::Text => Type::Text,
            // What is in it is looked at when it is read.
            What::Sequence => Type::Numbers,
            _ => Type::Any,
        };
        let other = |wanted| Err(BindError::OtherType { event, field: field.to_owned(), wanted });
        match (of, is) {
            (Type::Number, Type::Number) | (Type::Text, Type::Text) => Ok(index),
            (Type::Any, Type::Number | Type::Text) | (Type::Numbers, Type::Numbers) => Ok(index),
            (Type::Numbers, _) => other("sequence"),
            (Type::Number, _) => other("whole number"),
            (Type::Text, _) => other("text"),
            (Type::Any, _) => other("number or text"),
        }
    }
}

fn kind(word: Option<KindWord>) -> Kind {
    match word {
        None | Some(KindWord::Internal) => Kind::Internal,
        Some(KindWord::Server) => Kind::Server,
        Some(KindWord::Client) => Kind::Client,
    }
}
