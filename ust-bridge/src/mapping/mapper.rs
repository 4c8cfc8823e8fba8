//! Mapper of events to span events.
//!
//! *In*: event views. *Out*: span events with their origin, and [`MapperStats`].
//!
//! *Invariant*: each event is counted once: as mapped, as ignored (no rule), or as not understood
//! (its fields do not match a rule). A span id that a rule generates is a function of the event
//! alone (process, thread, time, key), so reading a trace again gives the same ids.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::{self, StringTable};
use super::bind::{BindError, BoundRule, Condition, RuleValue, SpanSelector, bind};
use super::bounded_map::BoundedMap;
use super::config::{Mapping, MatchValue, Rule, RuleKind, Scope};
use super::traceparent::{self, RemoteParent};
use crate::span_event::{EventOrigin, RpcSide, SpanEvent, SpanKind};
use blkkin_lttng_live::ctf::plan::{Plan, Value};
use blkkin_lttng_live::event_view::EventView;

/// Maximum number of names of events without a rule.
const UNKNOWN_NAMES_MAX: usize = 256;

/// Counters of events.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct MapperStats {
    /// Events with a rule, even if its condition was false.
    pub mapped: u64,
    /// Events without a rule.
    pub ignored: u64,
    /// Events with a rule that does not match their fields.
    pub not_understood: u64,
    /// Ends and annotations by a key without a known begin.
    pub unmatched: u64,
    /// Names and counts of events without a rule, for the first 256 names.
    pub unknown: BTreeMap<String, u64>,
}

/// Rules for a class of events.
#[derive(Debug)]
enum ClassRules {
    Bound(Vec<BoundRule>),
    NoRule,
    Mismatch,
}

/// State of a class of events. The address of its name identifies the class and its trace.
#[derive(Debug)]
struct ClassState {
    class: Arc<str>,
    rules: ClassRules,
    vpid: Option<usize>,
    vtid: Option<usize>,
    procname: Option<usize>,
    pid_ns: Option<usize>,
}

/// Inode of the initial pid namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const INITIAL_PID_NS: u64 = 0xefff_fffc;

/// Key of an open span: pid namespace with the user, process and thread according to its scope, and hash of the
/// rule's key.
type Key = (u64, u64, u64);

/// Mapper with its state.
#[derive(Debug)]
pub struct Mapper {
    rules: Vec<Rule>,
    /// State by trace, class of streams and class of events.
    classes: Vec<Vec<Vec<Option<ClassState>>>>,
    begun_spans: BoundedMap<u64, ()>,
    open_spans: BoundedMap<Key, u64>,
    strings: StringTable,
    /// Counters of events.
    pub stats: MapperStats,
    bind_errors: Vec<BindError>,
}

impl Mapper {
    /// Creates a mapper with these rules.
    pub fn new(mapping: Mapping) -> Self {
        Self {
            rules: mapping.rule,
            classes: Vec::new(),
            begun_spans: BoundedMap::default(),
            open_spans: BoundedMap::default(),
            strings: StringTable::default(),
            stats: MapperStats::default(),
            bind_errors: Vec::new(),
        }
    }

    /// Returns and clears the rules that did not match a provider's events.
    pub fn take_bind_errors(&mut self) -> impl Iterator<Item = BindError> + '_ {
        self.bind_errors.drain(..)
    }

    /// Forgets spans that are open by a key, because their end may be lost.
    pub fn forget_open_spans(&mut self) {
        self.open_spans = BoundedMap::default();
    }

    /// Forgets spans that are open by a key of an exited thread in the initial pid namespace; with
    /// `process`, also those of its process.
    pub fn thread_exited(&mut self, vpid: u32, vtid: u32, process: bool) {
        let (process_scope, thread_scope) = (u64::from(vpid) << 32, u64::from(vpid) << 32 | u64::from(vtid));
        self.open_spans.retain(|(ns, scope_id, _)| {
            *ns != 0 || *scope_id != thread_scope && !(process && *scope_id == process_scope)
        });
    }

    /// Maps an event.
    pub fn map(&mut self, view: &EventView<'_>, out: &mut impl FnMut(&EventOrigin<'_>, SpanEvent<'_>)) {
        let Self { rules, classes, begun_spans, open_spans, strings, stats, bind_errors } = self;
        let state = class_slot(classes, view);
        let class = view.class();
        if state.as_ref().is_none_or(|state| !Arc::ptr_eq(&state.class, &class.name)) {
            *state = Some(bind_class(rules, view, bind_errors));
        }
        let Some(state) = state else { return };
        let bound = match &state.rules {
            ClassRules::Bound(bound) => bound,
            ClassRules::NoRule => {
                stats.ignored += 1;
                count_name(&mut stats.unknown, &class.name);
                return;
            }
            ClassRules::Mismatch => {
                stats.not_understood += 1;
                return;
            }
        };
        stats.mapped += 1;
        let at = origin(state, view);
        let mut mapping =
            EventMapping { view, at: &at, begun_spans, open_spans, strings, stats, replaced_span: None };
        for bound in bound {
            if bound.when.iter().all(|condition| mapping.matches(condition))
                && !bound.unless.iter().any(|condition| mapping.matches(condition))
            {
                mapping.apply_rule(bound, out);
            }
        }
    }
}

fn class_slot<'s>(
    classes: &'s mut Vec<Vec<Vec<Option<ClassState>>>>,
    view: &EventView<'_>,
) -> &'s mut Option<ClassState> {
    fn slot<T>(list: &mut Vec<T>, index: usize, new: impl FnMut() -> T) -> &mut T {
        if list.len() <= index {
            list.resize_with(index + 1, new);
        }
        &mut list[index]
    }
    let streams = slot(classes, view.trace_index, Vec::new);
    let classes = slot(streams, view.event.stream, Vec::new);
    slot(classes, view.event.class as usize, || None)
}

fn bind_class(rules: &[Rule], view: &EventView<'_>, bind_errors: &mut Vec<BindError>) -> ClassState {
    let class = view.class();
    let rules = match bind(rules, class) {
        Ok(bound) if bound.is_empty() => ClassRules::NoRule,
        Ok(bound) => ClassRules::Bound(bound),
        Err(error) => {
            bind_errors.push(error);
            ClassRules::Mismatch
        }
    };
    let context = view.stream().event_context.as_ref();
    let field = |name| context.and_then(|plan: &Plan| plan.field(name)).map(|(index, _)| index);
    let [vpid, vtid, procname, pid_ns] = ["vpid", "vtid", "procname", "pid_ns"].map(field);
    ClassState { class: class.name.clone(), rules, vpid, vtid, procname, pid_ns }
}

fn count_name(counts: &mut BTreeMap<String, u64>, name: &str) {
    if let Some(count) = counts.get_mut(name) {
        *count += 1;
    } else if counts.len() < UNKNOWN_NAMES_MAX {
        counts.insert(name.to_owned(), 1);
    }
}

/// Returns the event's origin from its context; with buffers per process, also from the trace's
/// `env`.
fn origin<'v>(class: &ClassState, view: &EventView<'v>) -> EventOrigin<'v> {
    let context = &view.event.stream_context;
    let number = |index: Option<usize>| index.and_then(|index| context.at(index)).map(raw);
    let vpid = number(class.vpid).or_else(|| view.trace.env("vpid")?.parse().ok()).unwrap_or(0);
    let procname = class.procname.and_then(|index| view.text(context.at(index)?));
    let procname = procname.or_else(|| view.trace.env("procname").map(Cow::Borrowed)).unwrap_or_default();
    let vtid = number(class.vtid).unwrap_or(0) as u32;
    let pid_ns = number(class.pid_ns).filter(|inode| *inode != INITIAL_PID_NS).unwrap_or(0);
    let time_ns = view.time_ns.max(0) as u64;
    EventOrigin { time_ns, vpid: vpid as u32, vtid, pid_ns, user: view.user, procname }
}

#[inline]
fn raw(value: Value) -> u64 {
    match value {
        Value::Unsigned(number) => number,
        Value::Signed(number) => number as u64,
        _ => 0,
    }
}

/// Mixes `more` into a hash (FNV-1a, then spread). The result is equal on every machine and in
/// every version.
pub(crate) fn hash(so_far: u64, more: &[u8]) -> u64 {
    let start = so_far ^ 0xcbf2_9ce4_8422_2325;
    let sum = more.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    spread(sum)
}

/// Spreads a number's bits with a bijection (the finalizer of splitmix64).
fn spread(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

struct EventMapping<'r, 'v> {
    view: &'r EventView<'v>,
    at: &'r EventOrigin<'v>,
    begun_spans: &'r mut BoundedMap<u64, ()>,
    open_spans: &'r mut BoundedMap<Key, u64>,
    strings: &'r mut StringTable,
    stats: &'r mut MapperStats,
    /// Span that had the key of the span that begins.
    replaced_span: Option<u64>,
}

impl<'v> EventMapping<'_, 'v> {
    fn value(&self, field: usize) -> Value {
        self.view.event.payload.at(field).unwrap_or(Value::End)
    }

    #[inline]
    fn number(&self, field: Option<usize>) -> u64 {
        field.map_or(0, |field| raw(self.value(field)))
    }

    fn text(&self, field: usize) -> Cow<'v, str> {
        match self.value(field) {
            Value::Unsigned(number) => Cow::Owned(number.to_string()),
            Value::Signed(number) => Cow::Owned(number.to_string()),
            value => self.view.text(value).unwrap_or_default(),
        }
    }

    fn rule_value<'s>(&self, value: &'s RuleValue<Arc<str>>) -> Cow<'s, str>
    where
        'v: 's,
    {
        match value {
            RuleValue::Constant(text) => Cow::Borrowed(text),
            RuleValue::Field(field) => self.text(*field),
        }
    }

    fn matches(&self, condition: &Condition) -> bool {
        let value = self.value(condition.field);
        condition.values.iter().any(|expected| match (expected, value) {
            (MatchValue::Number(expected), Value::Unsigned(number)) => {
                i128::from(*expected) == i128::from(number)
            }
            (MatchValue::Number(expected), Value::Signed(number)) => *expected == number,
            (MatchValue::Text(expected), Value::Text { at, length }) => {
                expected.as_bytes() == self.view.bytes(at, length)
            }
            _ => false,
        })
    }

    /// Returns the key in the table of open spans.
    fn key(&self, fields: &[usize], scope: Scope, group: u64) -> Key {
        let (process, thread) = (u64::from(self.at.vpid), u64::from(self.at.vtid));
        // A user cannot end the spans of another user's process. A namespace's inode has 32 bits.
        let claimed_ns = self.at.pid_ns ^ u64::from(self.at.user) << 32;
        let (ns, scope_id) = match scope {
            Scope::Everywhere => (0, 0),
            Scope::Process => (claimed_ns, process << 32),
            Scope::Thread => (claimed_ns, process << 32 | thread),
        };
        let key = fields.iter().fold(group, |sum, field| match self.value(*field) {
            Value::Text { at, length } => hash(sum, self.view.bytes(at, length)),
            value => hash(sum, &raw(value).to_le_bytes()),
        });
        (ns, scope_id, key)
    }

    /// Returns the span that the rule applies to.
    fn span(&mut self, bound: &BoundRule) -> Option<u64> {
        match &bound.selector {
            SpanSelector::Id(field) => Some(self.number(Some(*field))),
            // Each span event in the batch has its own span.
            SpanSelector::Batch(_) => None,
            SpanSelector::Key { fields, scope, group } => {
                let key = self.key(fields, *scope, *group);
                let found = match bound.rule_kind {
                    // The span has begun already.
                    RuleKind::Begin if bound.first && self.open_spans.get(&key).is_some() => return None,
                    RuleKind::Begin => {
                        let process = (u64::from(self.at.vpid) << 32 | u64::from(self.at.vtid)).to_le_bytes();
                        let key_in_ns = key.2 ^ (key.0 & u64::from(u32::MAX));
                        let generated =
                            hash(hash(key_in_ns, &process), &self.at.time_ns.to_le_bytes()).max(1);
                        self.replaced_span = self.open_spans.get(&key);
                        // Two rules of one event describe the same begin.
                        if self.replaced_span == Some(generated) {
                            return None;
                        }
                        self.open_spans.insert(key, generated);
                        Some(generated)
                    }
                    RuleKind::End => self.open_spans.remove(&key),
                    _ => self.open_spans.get(&key),
                };
                self.stats.unmatched += u64::from(found.is_none());
                found
            }
        }
    }

    fn apply_rule(&mut self, bound: &BoundRule, out: &mut impl FnMut(&EventOrigin<'_>, SpanEvent<'_>)) {
        let at = self.at;
        if let SpanSelector::Batch(field) = bound.selector {
            let words = self.view.event.payload.elements(field).map(raw);
            let decoded = batch::read(words, self.strings, &mut |event| out(at, event));
            if decoded.is_none() {
                self.stats.mapped -= 1;
                self.stats.not_understood += 1;
            }
            return;
        }
        let Some(span) = self.span(bound) else { return };
        if bound.first && matches!(bound.selector, SpanSelector::Id(_)) {
            // Each lookup keeps a span in use from eviction.
            let known = self.begun_spans.get(&span).is_some();
            if known {
                return;
            }
            self.begun_spans.insert(span, ());
        }
        // The old span cannot be ended any more, so the thread leaves it.
        if let Some(span) = self.replaced_span.take() {
            out(at, SpanEvent::Leave { span });
        }
        match bound.rule_kind {
            RuleKind::Begin => out(at, self.begin(bound, span)),
            RuleKind::Enter => out(at, SpanEvent::Enter { span }),
            RuleKind::Leave => out(at, SpanEvent::Leave { span }),
            RuleKind::Event => out(at, SpanEvent::Event { span, name: self.rule_value(&bound.name) }),
            RuleKind::Text => {
                let value = bound.value.map(|field| self.text(field)).unwrap_or_default();
                out(at, SpanEvent::Text { span, key: self.rule_value(&bound.name), value });
            }
            RuleKind::Number => {
                let value = self.number(bound.value) as i64;
                out(at, SpanEvent::Number { span, key: self.rule_value(&bound.name), value });
            }
            RuleKind::RpcEndpoint => out(at, self.rpc_endpoint(bound, span)),
            RuleKind::End | RuleKind::Batch | RuleKind::Ignore => {}
        }
        for (key, field) in &bound.annotate {
            let key = Cow::Borrowed(&**key);
            match self.value(*field) {
                Value::Text { .. } => out(at, SpanEvent::Text { span, key, value: self.text(*field) }),
                value => out(at, SpanEvent::Number { span, key, value: raw(value) as i64 }),
            }
        }
        // The end is the last event of a span.
        if bound.rule_kind == RuleKind::End {
            let status = (self.number(bound.status) as i32).saturating_abs();
            out(at, SpanEvent::End { span, status });
        }
    }

    fn begin<'s>(&self, bound: &'s BoundRule, span: u64) -> SpanEvent<'s>
    where
        'v: 's,
    {
        let kind = match bound.kind {
            RuleValue::Constant(kind) => kind,
            RuleValue::Field(field) => match self.number(Some(field)) {
                1 => SpanKind::Server,
                2 => SpanKind::Client,
                _ => SpanKind::Local,
            },
        };
        let enter = match bound.enter {
            RuleValue::Constant(enter) => enter,
            // 2: the thread context is published, so a change of span has no event.
            RuleValue::Field(field) => self.number(Some(field)) == 1,
        };
        let sample_rate = bound.sample_rate.map(|field| self.number(Some(field)));
        let parent = bound.traceparent.and_then(|field| traceparent::find(&self.text(field)));
        let parent = parent.unwrap_or_else(|| RemoteParent {
            trace_hi: self.number(bound.trace_hi),
            trace_lo: self.number(bound.trace_lo),
            span: self.number(bound.parent),
        });
        SpanEvent::Begin {
            trace_hi: parent.trace_hi,
            trace_lo: parent.trace_lo,
            span,
            parent: parent.span,
            kind,
            enter,
            sample_rate: sample_rate.map_or(1_000_000, |sample_rate| sample_rate.min(1_000_000) as u32),
            name: self.rule_value(&bound.name),
            service: match &bound.service {
                Some(service) => self.rule_value(service),
                None => self.at.procname.clone(),
            },
        }
    }

    fn rpc_endpoint<'s>(&self, bound: &'s BoundRule, span: u64) -> SpanEvent<'s>
    where
        'v: 's,
    {
        SpanEvent::RpcEndpoint {
            span,
            side: if self.number(bound.side) == 0 { RpcSide::Client } else { RpcSide::Server },
            unique: self.number(bound.unique) != 0,
            protocol: self.rule_value(&bound.protocol),
            connection: bound.connection.map(|field| self.text(field)).unwrap_or_default(),
            cookie: self.number(bound.cookie),
        }
    }
}
