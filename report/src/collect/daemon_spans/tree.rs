//! Tree of one daemon span and its descendants.
//!
//! *In*: groups. *Out*: a tree with children ordered by start time. *Invariant*: each trace of the
//! group and of its nested groups is in the tree once. A trace whose parent is missing becomes a
//! child of the root, marked as an orphan. Programs name the parents, so cycles are possible: the
//! members of a cycle also become orphans.

use std::collections::{HashMap, HashSet};

use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::ids::{SpanId, TraceId};

use super::{GroupState, TraceGroup, daemon_span, parent};

/// Maximum depth of a tree. Programs choose the parents, so the depth needs a limit; a reader needs
/// no deeper tree.
const DEPTH_MAX: usize = 16;

/// A trace and its children.
#[derive(Clone, Debug)]
pub struct SpanTree<'a> {
    /// The trace of this node.
    pub trace: &'a Trace,
    /// Relation to the parent.
    pub relation: Relation<'a>,
    /// Children by start time.
    pub children: Vec<SpanTree<'a>>,
    /// Of the root: number of traces that were dropped from the tree.
    pub traces_dropped: u64,
}

/// Relation of a node to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation<'a> {
    /// No parent.
    Root,
    /// The node names its parent.
    Child,
    /// The node is the server of its parent's request, linked by this rule.
    Server(&'a str),
    /// The node belongs to the trace, but the parent that it names is missing.
    Orphan,
}

impl<'a> SpanTree<'a> {
    /// Returns the daemon span, if this node is one.
    pub fn daemon_span(&self) -> Option<&'a DaemonSpanEvent> {
        daemon_span(self.trace)
    }

    /// Returns the duration of this node.
    pub fn duration(&self) -> DurationNs {
        self.trace.duration()
    }

    /// Returns the servers of this node's requests.
    pub fn servers(&self) -> impl Iterator<Item = &SpanTree<'a>> {
        self.children.iter().filter(|child| matches!(child.relation, Relation::Server(_)))
    }

    /// Returns the traces of all descendants.
    pub fn descendants(&self) -> Vec<&'a Trace> {
        self.children
            .iter()
            .flat_map(|child| std::iter::once(child.trace).chain(child.descendants()))
            .collect()
    }
}

/// A span of a trace, as the key of its children.
type SpanKey = (TraceId, SpanId);

pub(super) fn build(groups: &HashMap<TraceId, TraceGroup>, id: TraceId) -> Option<SpanTree<'_>> {
    let root = groups.get(&id)?.root()?;
    let (mut members, mut traces_dropped) = (Vec::new(), 0);
    collect_members(groups, id, &mut members, &mut traces_dropped);
    let mut children: HashMap<SpanKey, Vec<(&Trace, Relation<'_>)>> = HashMap::new();
    for (trace, parent, relation) in &members {
        if let Some(parent) = parent {
            children.entry(*parent).or_default().push((trace, *relation));
        }
    }
    let mut visited = HashSet::new();
    let mut tree = subtree(root, Relation::Root, &children, &mut visited, 0);
    for (trace, ..) in members {
        if !visited.contains(&(trace.id, trace.root_span)) {
            let orphan = subtree(trace, Relation::Orphan, &children, &mut visited, 1);
            tree.children.push(orphan);
        }
    }
    tree.traces_dropped = traces_dropped;
    sort(&mut tree.children);
    Some(tree)
}

type Member<'a> = (&'a Trace, Option<SpanKey>, Relation<'a>);

/// Collects the traces of a group and of its nested groups. Daemon spans come first, so that an
/// orphan among them takes its own children along.
fn collect_members<'a>(
    groups: &'a HashMap<TraceId, TraceGroup>,
    id: TraceId,
    members: &mut Vec<Member<'a>>,
    traces_dropped: &mut u64,
) {
    let mut ids = vec![id];
    while let Some(id) = ids.pop() {
        let Some(group) = groups.get(&id) else { continue };
        *traces_dropped += group.traces_dropped;
        ids.extend(&group.nested);
        let root = group.root().map(|root| root.root_span);
        for trace in &group.traces {
            let member = match &group.state {
                GroupState::Nested(reparented) if Some(trace.root_span) == root => {
                    let client = (reparented.trace, reparented.parent);
                    (trace, Some(client), Relation::Server(&reparented.rule))
                }
                _ => (trace, parent(trace).map(|parent| (id, parent)), Relation::Child),
            };
            members.push(member);
        }
    }
    members.sort_by_key(|(trace, ..)| (daemon_span(trace).is_none(), trace.start(), trace.root_span));
}

fn subtree<'a>(
    trace: &'a Trace,
    relation: Relation<'a>,
    children_of: &HashMap<SpanKey, Vec<(&'a Trace, Relation<'a>)>>,
    visited: &mut HashSet<SpanKey>,
    depth: usize,
) -> SpanTree<'a> {
    let key = (trace.id, trace.root_span);
    visited.insert(key);
    let mut children = Vec::new();
    for (child, relation) in children_of.get(&key).map(Vec::as_slice).unwrap_or_default() {
        if depth < DEPTH_MAX && !visited.contains(&(child.id, child.root_span)) {
            children.push(subtree(child, *relation, children_of, visited, depth + 1));
        }
    }
    sort(&mut children);
    SpanTree { trace, relation, children, traces_dropped: 0 }
}

fn sort(trees: &mut [SpanTree<'_>]) {
    trees.sort_by_key(|tree| (tree.trace.start(), tree.trace.root_span));
}
