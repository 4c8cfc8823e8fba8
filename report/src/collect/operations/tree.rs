//! One operation with all that hangs below it.
//!
//! *In*: families. *Out*: a tree, children by their begin. *Invariant*: each trace of the family, and of those shown in it, is in the tree
//! once. What names something above that is not there hangs below the top, and says so. Programs say what is above what, so a circle
//! is possible: who is in it hangs below the top too.

use std::collections::{HashMap, HashSet};

use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::ids::{SpanId, TraceId};

use super::{Family, Place, above, operation};

/// How far a tree is drawn. Nobody reads further, and who says what is above what is a program.
const DEPTH_MAX: usize = 16;

/// A trace, and what hangs below it.
#[derive(Clone, Debug)]
pub struct Tree<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// How it hangs there.
    pub relation: Relation<'a>,
    /// What was done for it, by its begin.
    pub below: Vec<Tree<'a>>,
    /// Of the top: further parts that are not kept.
    pub more: u64,
}

/// How something hangs below another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation<'a> {
    /// It does not: it is the top.
    Top,
    /// It names what is above it.
    Part,
    /// It answered it, as this rule says.
    Answer(&'a str),
    /// It belongs to the trace, and what it names is not there.
    Stray,
}

impl<'a> Tree<'a> {
    /// What a program said of it, if it is an operation.
    pub fn operation(&self) -> Option<&'a DaemonSpanEvent> {
        operation(self.trace)
    }

    /// Its time.
    pub fn duration(&self) -> DurationNs {
        self.trace.duration()
    }

    /// Who answered it.
    pub fn answers(&self) -> impl Iterator<Item = &Tree<'a>> {
        self.below.iter().filter(|tree| matches!(tree.relation, Relation::Answer(_)))
    }

    /// All traces below it.
    pub fn all_below(&self) -> Vec<&'a Trace> {
        self.below.iter().flat_map(|tree| std::iter::once(tree.trace).chain(tree.all_below())).collect()
    }
}

/// Where something hangs: below which span of which trace.
type Above = (TraceId, SpanId);

pub(super) fn grow(families: &HashMap<TraceId, Family>, id: TraceId) -> Option<Tree<'_>> {
    let top = families.get(&id)?.top()?;
    let (mut members, mut more) = (Vec::new(), 0);
    gather(families, id, &mut members, &mut more);
    let mut children: HashMap<Above, Vec<(&Trace, Relation<'_>)>> = HashMap::new();
    for (trace, above, relation) in &members {
        if let Some(above) = above {
            children.entry(*above).or_default().push((trace, *relation));
        }
    }
    let mut seen = HashSet::new();
    let mut tree = branch(top, Relation::Top, &children, &mut seen, 0);
    for (trace, ..) in members {
        if !seen.contains(&(trace.id, trace.root_span)) {
            let stray = branch(trace, Relation::Stray, &children, &mut seen, 1);
            tree.below.push(stray);
        }
    }
    tree.more = more;
    sort(&mut tree.below);
    Some(tree)
}

type Member<'a> = (&'a Trace, Option<Above>, Relation<'a>);

/// All of a family and of those shown in it, operations first: a stray one takes its own along.
fn gather<'a>(
    families: &'a HashMap<TraceId, Family>,
    id: TraceId,
    members: &mut Vec<Member<'a>>,
    more: &mut u64,
) {
    let mut all = vec![id];
    while let Some(id) = all.pop() {
        let Some(family) = families.get(&id) else { continue };
        *more += family.more;
        all.extend(&family.below);
        let top = family.top().map(|top| top.root_span);
        for trace in &family.traces {
            let member = match &family.place {
                Place::In(moved) if Some(trace.root_span) == top => {
                    (trace, Some((moved.trace, moved.parent)), Relation::Answer(&moved.rule))
                }
                _ => (trace, above(trace).map(|above| (id, above)), Relation::Part),
            };
            members.push(member);
        }
    }
    members.sort_by_key(|(trace, ..)| (operation(trace).is_none(), trace.start(), trace.root_span));
}

fn branch<'a>(
    trace: &'a Trace,
    relation: Relation<'a>,
    children: &HashMap<Above, Vec<(&'a Trace, Relation<'a>)>>,
    seen: &mut HashSet<Above>,
    depth: usize,
) -> Tree<'a> {
    seen.insert((trace.id, trace.root_span));
    let mut below = Vec::new();
    let here = children.get(&(trace.id, trace.root_span)).map(Vec::as_slice).unwrap_or_default();
    for (child, relation) in here {
        if depth < DEPTH_MAX && !seen.contains(&(child.id, child.root_span)) {
            below.push(branch(child, *relation, children, seen, depth + 1));
        }
    }
    sort(&mut below);
    Tree { trace, relation, below, more: 0 }
}

fn sort(trees: &mut [Tree<'_>]) {
    trees.sort_by_key(|tree| (tree.trace.start(), tree.trace.root_span));
}
