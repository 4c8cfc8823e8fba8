//! Events in, facts out.
//!
//! Each event is counted once: mapped, ignored (no rule is about it) or not understood (a rule is, and does not fit its
//! fields). An id that a mapping makes is a function of the event alone (process, thread, time, key), so the same trace
//! read again gives the same ids.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::bind::{BindError, Bound, Said, When, Whose, bind};
use super::config::{Is, Mapping, Rule, Scope, Wanted};
use super::recent::Recent;
use super::together::{self, Names};
use super::traceparent::{self, Asker};
use crate::ctf::plan::{Plan, Value};
use crate::facts::{Fact, Kind, Side, Where};
use crate::view::View;

/// Names of events without a rule that are kept, with their counts.
const NAMES_MAX: usize = 256;

/// What became of events.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Facts were made of them, or a rule's condition did not hold.
    pub mapped: u64,
    /// No rule is about them.
    pub ignored: u64,
    /// A rule is about them and does not fit their fields.
    pub not_understood: u64,
    /// Ends and annotations by a key whose begin was not seen, or is forgotten.
    pub unmatched: u64,
    /// Names of those that no rule is about, the first 256.
    pub unknown: BTreeMap<String, u64>,
}

/// What is known of a class of events.
#[derive(Debug)]
enum Known {
    Rules(Vec<Bound>),
    NoRule,
    Misfit,
}

/// A class that was seen, told by its name's place in memory: it is of one trace of one reader.
#[derive(Debug)]
struct Seen {
    class: Arc<str>,
    known: Known,
    vpid: Option<usize>,
    vtid: Option<usize>,
    procname: Option<usize>,
    pid_ns: Option<usize>,
}

/// Inode of the initial name space of processes (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const INITIAL_PID_NS: u64 = 0xefff_fffc;

/// What is open: by name space of processes, process and thread there (as far as its key is theirs), and what the rule says.
type Key = (u64, u64, u64);

/// Makes facts of events.
#[derive(Debug)]
pub struct Mapper {
    rules: Vec<Rule>,
    /// By trace, class of streams, class of events.
    seen: Vec<Vec<Vec<Option<Seen>>>>,
    begun: Recent<u64, ()>,
    open: Recent<Key, u64>,
    names: Names,
    /// What became of events.
    pub counts: Mapped,
    misfits: Vec<BindError>,
}

impl Mapper {
    /// By these rules.
    pub fn new(mapping: Mapping) -> Self {
        Self {
            rules: mapping.rule,
            seen: Vec::new(),
            begun: Recent::default(),
            open: Recent::default(),
            names: Names::default(),
            counts: Mapped::default(),
            misfits: Vec::new(),
        }
    }

    /// Rules that do not fit a provider's events, since the last time it was asked for.
    pub fn misfits(&mut self) -> impl Iterator<Item = BindError> + '_ {
        self.misfits.drain(..)
    }

    /// What was open by a key may have ended unheard.
    pub fn forget(&mut self) {
        self.open = Recent::default();
    }

    /// The thread of the initial name space is gone, and with it what was open by a key of its own; and of its process, if that is gone.
    pub fn gone(&mut self, vpid: u32, vtid: u32, process: bool) {
        let (of, thread) = (u64::from(vpid) << 32, u64::from(vpid) << 32 | u64::from(vtid));
        self.open.retain(|(ns, place, _)| *ns != 0 || *place != thread && !(process && *place == of));
    }

    /// What `view` means.
    pub fn map(&mut self, view: &View<'_>, out: &mut impl FnMut(&Where<'_>, Fact<'_>)) {
        let Self { rules, seen, begun, open, names, counts, misfits } = self;
        let seen = slot(seen, view);
        let class = view.class();
        if seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(&seen.class, &class.name)) {
            *seen = Some(look(rules, view, misfits));
        }
        let Some(seen) = seen else { return };
        let bound = match &seen.known {
            Known::Rules(bound) => bound,
            Known::NoRule => {
                counts.ignored += 1;
                count_name(&mut counts.unknown, &class.name);
                return;
            }
            Known::Misfit => {
                counts.not_understood += 1;
                return;
            }
        };
        counts.mapped += 1;
        let at = place(seen, view);
        let mut run = Run { view, at: &at, begun, open, names, counts, left: None };
        for bound in bound {
            if bound.when.iter().all(|when| run.holds(when))
                && !bound.unless.iter().any(|unless| run.holds(unless))
            {
                run.rule(bound, out);
            }
        }
    }
}

fn slot<'s>(seen: &'s mut Vec<Vec<Vec<Option<Seen>>>>, view: &View<'_>) -> &'s mut Option<Seen> {
    fn grown<T>(list: &mut Vec<T>, index: usize, new: impl FnMut() -> T) -> &mut T {
        if list.len() <= index {
            list.resize_with(index + 1, new);
        }
        &mut list[index]
    }
    let streams = grown(seen, view.trace_index, Vec::new);
    let classes = grown(streams, view.event.stream, Vec::new);
    grown(classes, view.event.class as usize, || None)
}

fn look(rules: &[Rule], view: &View<'_>, misfits: &mut Vec<BindError>) -> Seen {
    let class = view.class();
    let known = match bind(rules, class) {
        Ok(bound) if bound.is_empty() => Known::NoRule,
        Ok(bound) => Known::Rules(bound),
        Err(misfit) => {
            misfits.push(misfit);
            Known::Misfit
        }
    };
    let context = view.stream().event_context.as_ref();
    let field = |name| context.and_then(|plan: &Plan| plan.field(name)).map(|(index, _)| index);
    let [vpid, vtid, procname, pid_ns] = ["vpid", "vtid", "procname", "pid_ns"].map(field);
    Seen { class: class.name.clone(), known, vpid, vtid, procname, pid_ns }
}

fn count_name(names: &mut BTreeMap<String, u64>, name: &str) {
    if let Some(count) = names.get_mut(name) {
        *count += 1;
    } else if names.len() < NAMES_MAX {
        names.insert(name.to_owned(), 1);
    }
}

/// Whose event it is: by its context; with buffers of a process alone, by what the trace says.
fn place<'v>(seen: &Seen, view: &View<'v>) -> Where<'v> {
    let context = &view.event.stream_context;
    let number = |index: Option<usize>| index.and_then(|index| context.at(index)).map(raw);
    let vpid = number(seen.vpid).or_else(|| view.trace.env("vpid")?.parse().ok()).unwrap_or(0);
    let procname = seen.procname.and_then(|index| view.text(context.at(index)?));
    let procname = procname.or_else(|| view.trace.env("procname").map(Cow::Borrowed)).unwrap_or_default();
    let vtid = number(seen.vtid).unwrap_or(0) as u32;
    let pid_ns = number(seen.pid_ns).filter(|inode| *inode != INITIAL_PID_NS).unwrap_or(0);
    Where { time_ns: view.time_ns.max(0) as u64, vpid: vpid as u32, vtid, pid_ns, procname }
}

#[inline]
fn raw(value: Value) -> u64 {
    match value {
        Value::Unsigned(number) => number,
        Value::Signed(number) => number as u64,
        _ => 0,
    }
}

/// `more` mixed into `so_far` (FNV-1a, then spread): equal on every machine and in every version.
pub(crate) fn hash(so_far: u64, more: &[u8]) -> u64 {
    let start = so_far ^ 0xcbf2_9ce4_8422_2325;
    let sum = more.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    spread(sum)
}

/// A bijection that leaves no pattern (splitmix64's end).
fn spread(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

struct Run<'r, 'v> {
    view: &'r View<'v>,
    at: &'r Where<'v>,
    begun: &'r mut Recent<u64, ()>,
    open: &'r mut Recent<Key, u64>,
    names: &'r mut Names,
    counts: &'r mut Mapped,
    /// The span that had the key of the one that begins.
    left: Option<u64>,
}

impl<'v> Run<'_, 'v> {
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

    fn said<'s>(&self, said: &'s Said<Arc<str>>) -> Cow<'s, str>
    where
        'v: 's,
    {
        match said {
            Said::Here(text) => Cow::Borrowed(text),
            Said::Field(field) => self.text(*field),
        }
    }

    fn holds(&self, when: &When) -> bool {
        let value = self.value(when.field);
        when.wanted.iter().any(|wanted| match (wanted, value) {
            (Wanted::Number(wanted), Value::Unsigned(number)) => i128::from(*wanted) == i128::from(number),
            (Wanted::Number(wanted), Value::Signed(number)) => *wanted == number,
            (Wanted::Text(wanted), Value::Text { at, length }) => {
                wanted.as_bytes() == self.view.bytes(at, length)
            }
            _ => false,
        })
    }

    /// The key's place in the table of open spans.
    fn key(&self, fields: &[usize], scope: Scope, group: u64) -> Key {
        let (process, thread) = (u64::from(self.at.vpid), u64::from(self.at.vtid));
        let (ns, place) = match scope {
            Scope::Everywhere => (0, 0),
            Scope::Process => (self.at.pid_ns, process << 32),
            Scope::Thread => (self.at.pid_ns, process << 32 | thread),
        };
        let key = fields.iter().fold(group, |sum, field| match self.value(*field) {
            Value::Text { at, length } => hash(sum, self.view.bytes(at, length)),
            value => hash(sum, &raw(value).to_le_bytes()),
        });
        (ns, place, key)
    }

    /// The span that the rule is about.
    fn span(&mut self, bound: &Bound) -> Option<u64> {
        match &bound.whose {
            Whose::Id(field) => Some(self.number(Some(*field))),
            // Each thing names its own.
            Whose::Words(_) => None,
            Whose::Key { fields, scope, group } => {
                let key = self.key(fields, *scope, *group);
                let found = match bound.is {
                    // What has begun goes on.
                    Is::Begin if bound.first && self.open.get(&key).is_some() => return None,
                    Is::Begin => {
                        let process = (u64::from(self.at.vpid) << 32 | u64::from(self.at.vtid)).to_le_bytes();
                        let key_in_ns = key.2 ^ key.0;
                        let made = hash(hash(key_in_ns, &process), &self.at.time_ns.to_le_bytes()).max(1);
                        self.left = self.open.get(&key);
                        // Two rules of one event say one begin.
                        if self.left == Some(made) {
                            return None;
                        }
                        self.open.insert(key, made);
                        Some(made)
                    }
                    Is::End => self.open.remove(&key),
                    _ => self.open.get(&key),
                };
                self.counts.unmatched += u64::from(found.is_none());
                found
            }
        }
    }

    fn rule(&mut self, bound: &Bound, out: &mut impl FnMut(&Where<'_>, Fact<'_>)) {
        let at = self.at;
        if let Whose::Words(field) = bound.whose {
            let words = self.view.event.payload.elements(field).map(raw);
            let read = together::read(words, self.names, &mut |fact| out(at, fact));
            if read.is_none() {
                self.counts.mapped -= 1;
                self.counts.not_understood += 1;
            }
            return;
        }
        let Some(span) = self.span(bound) else { return };
        if bound.first && matches!(bound.whose, Whose::Id(_)) {
            // Asked each time, so that what is in use is not forgotten.
            let known = self.begun.get(&span).is_some();
            if known {
                return;
            }
            self.begun.insert(span, ());
        }
        // Nobody can end it any more, so nobody works for it either.
        if let Some(span) = self.left.take() {
            out(at, Fact::Leave { span });
        }
        match bound.is {
            Is::Begin => out(at, self.begin(bound, span)),
            Is::Enter => out(at, Fact::Enter { span }),
            Is::Leave => out(at, Fact::Leave { span }),
            Is::Event => out(at, Fact::Event { span, name: self.said(&bound.name) }),
            Is::Text => {
                let value = bound.value.map(|field| self.text(field)).unwrap_or_default();
                out(at, Fact::Text { span, key: self.said(&bound.name), value });
            }
            Is::Number => {
                let value = self.number(bound.value) as i64;
                out(at, Fact::Number { span, key: self.said(&bound.name), value });
            }
            Is::Meeting => out(at, self.meeting(bound, span)),
            Is::End | Is::Together | Is::Ignore => {}
        }
        for (key, field) in &bound.annotate {
            let key = Cow::Borrowed(&**key);
            match self.value(*field) {
                Value::Text { .. } => out(at, Fact::Text { span, key, value: self.text(*field) }),
                value => out(at, Fact::Number { span, key, value: raw(value) as i64 }),
            }
        }
        // The end is the last that is said of a span.
        if bound.is == Is::End {
            let status = (self.number(bound.status) as i32).saturating_abs();
            out(at, Fact::End { span, status });
        }
    }

    fn begin<'s>(&self, bound: &'s Bound, span: u64) -> Fact<'s>
    where
        'v: 's,
    {
        let kind = match bound.kind {
            Said::Here(kind) => kind,
            Said::Field(field) => match self.number(Some(field)) {
                1 => Kind::Server,
                2 => Kind::Client,
                _ => Kind::Internal,
            },
        };
        let on = match bound.on {
            Said::Here(on) => on,
            // 2: it is published, and so not said when the thread works for something else.
            Said::Field(field) => self.number(Some(field)) == 1,
        };
        let kept = bound.kept_per_million.map(|field| self.number(Some(field)));
        let asker = bound.traceparent.and_then(|field| traceparent::find(&self.text(field)));
        let asker = asker.unwrap_or_else(|| Asker {
            trace_hi: self.number(bound.trace_hi),
            trace_lo: self.number(bound.trace_lo),
            span: self.number(bound.parent),
        });
        Fact::Begin {
            trace_hi: asker.trace_hi,
            trace_lo: asker.trace_lo,
            span,
            parent: asker.span,
            kind,
            on,
            kept_per_million: kept.map_or(1_000_000, |kept| kept.min(1_000_000) as u32),
            name: self.said(&bound.name),
            service: match &bound.service {
                Some(said) => self.said(said),
                None => self.at.procname.clone(),
            },
        }
    }

    fn meeting<'s>(&self, bound: &'s Bound, span: u64) -> Fact<'s>
    where
        'v: 's,
    {
        Fact::Meeting {
            span,
            side: if self.number(bound.side) == 0 { Side::Asked } else { Side::Answered },
            unique: self.number(bound.unique) != 0,
            rule: self.said(&bound.rule),
            connection: bound.connection.map(|field| self.text(field)).unwrap_or_default(),
            cookie: self.number(bound.cookie),
        }
    }
}
