//! Breadth-first search over all schedules of a small system.
//!
//! *In*: a system and the steps that it can take. *Out*: the shortest schedule that breaks a rule, or
//! the number of distinct states. *Invariant*: each reachable state is visited once.
//!
//! Progress is part of the search: the first faultless step of a state is that of a fair scheduler
//! without further faults. From every state these steps must lead to an end where nothing is
//! unfinished, and never in a circle.
//!
//! *Rejected*: stateright 0.31.0 (MIT). A state here is a suspended run of the real code, which can be
//! repeated but not copied. It had no change since July 2025, and brings 20 crates, a web server among
//! them.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Instant;

/// A system whose steps a search chooses.
pub(super) trait System {
    type Step: Clone + Debug;

    /// Returns the possible steps, and whether each is a fault. Faultless ones come first, in the
    /// order of a fair scheduler.
    fn steps(&self) -> Vec<(Self::Step, bool)>;
    fn take(&mut self, step: &Self::Step);
    /// Returns equal values for equal states.
    fn fingerprint(&self) -> u64;
    /// Returns the rule that this state breaks.
    fn violation(&self) -> Option<String>;
    /// Returns what is missing in a state without faultless steps.
    fn unfinished(&self) -> Option<String>;
}

/// Broken rule, and the schedule that leads to it.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) rule: String,
    pub(super) schedule: Vec<String>,
}

/// Result of a search.
#[derive(Debug)]
pub(super) struct Searched {
    pub(super) states: usize,
    pub(super) transitions: usize,
    pub(super) depth: usize,
    pub(super) finding: Option<Finding>,
}

struct Node<S> {
    parent: usize,
    step: Option<S>,
    depth: usize,
    /// State after the first faultless step.
    settles_to: Option<usize>,
}

/// Searches all states that `start` can reach. Panics beyond `states_max` states: the search would be
/// incomplete.
pub(super) fn search<T: System>(start: impl Fn() -> T, states_max: usize) -> Searched {
    let begun = Instant::now();
    let mut search =
        Search { start, live: HashMap::new(), nodes: Vec::new(), known: HashMap::new(), transitions: 0 };
    let finding = search.run(states_max);
    let depth = search.nodes.last().map_or(0, |node| node.depth);
    let searched = Searched { states: search.nodes.len(), transitions: search.transitions, depth, finding };
    println!(
        "{} states, {} transitions, depth {}, {:.1} s",
        searched.states,
        searched.transitions,
        searched.depth,
        begun.elapsed().as_secs_f64()
    );
    searched
}

/// Maximum number of systems that stay in memory for their next step, with some 0.5 MB of stacks each.
const LIVE_MAX: usize = 1_000;

struct Search<T: System, F> {
    start: F,
    /// Systems of nodes that are not expanded yet. The others are repeated from the start.
    live: HashMap<usize, T>,
    nodes: Vec<Node<T::Step>>,
    known: HashMap<u64, usize>,
    transitions: usize,
}

impl<T: System, F: Fn() -> T> Search<T, F> {
    fn run(&mut self, states_max: usize) -> Option<Finding> {
        let first = (self.start)();
        self.known.insert(first.fingerprint(), 0);
        self.nodes.push(Node { parent: 0, step: None, depth: 0, settles_to: None });
        let mut next = 0;
        while next < self.nodes.len() {
            if self.nodes.len() > states_max {
                let path = self.path(self.nodes.len() - 1);
                panic!("more than {states_max} states, for example {:#?}", finding(String::new(), &path));
            }
            if let Some(finding) = self.expand(next) {
                return Some(finding);
            }
            next += 1;
        }
        self.circle()
    }

    /// Visits the states one step behind a node.
    fn expand(&mut self, node: usize) -> Option<Finding> {
        let path = self.path(node);
        let live = self.live.remove(&node);
        let mut system = Some(live.unwrap_or_else(|| self.replay(&path)));
        let steps = system.as_ref().map(System::steps).unwrap_or_default();
        if steps.first().is_none_or(|(_, fault)| *fault)
            && let Some(rule) = system.as_ref().and_then(System::unfinished)
        {
            return Some(finding(rule, &path));
        }
        for (n, (step, fault)) in steps.into_iter().enumerate() {
            let mut system = system.take().unwrap_or_else(|| self.replay(&path));
            system.take(&step);
            self.transitions += 1;
            let new = self.nodes.len();
            let found = *self.known.entry(system.fingerprint()).or_insert(new);
            if n == 0 && !fault {
                self.nodes[node].settles_to = Some(found);
            }
            if found < new {
                continue;
            }
            let depth = self.nodes[node].depth + 1;
            self.nodes.push(Node { parent: node, step: Some(step), depth, settles_to: None });
            if let Some(rule) = system.violation() {
                return Some(finding(rule, &self.path(new)));
            }
            if self.live.len() < LIVE_MAX {
                self.live.insert(new, system);
            }
        }
        None
    }

    fn path(&self, mut node: usize) -> Vec<T::Step> {
        let mut path = Vec::new();
        while let Some(step) = &self.nodes[node].step {
            path.push(step.clone());
            node = self.nodes[node].parent;
        }
        path.reverse();
        path
    }

    fn replay(&self, path: &[T::Step]) -> T {
        let mut system = (self.start)();
        path.iter().for_each(|step| system.take(step));
        system
    }

    /// Looks for a state from which the faultless steps never end.
    fn circle(&self) -> Option<Finding> {
        let mut ends = vec![false; self.nodes.len()];
        for start in 0..self.nodes.len() {
            let (mut on_way, mut at) = (Vec::new(), start);
            while !ends[at] {
                if on_way.len() > self.nodes.len() {
                    return Some(finding("no end without faults".to_owned(), &self.path(start)));
                }
                on_way.push(at);
                match self.nodes[at].settles_to {
                    Some(next) => at = next,
                    None => break,
                }
            }
            on_way.into_iter().for_each(|node| ends[node] = true);
        }
        None
    }
}

fn finding<S: Debug>(rule: String, path: &[S]) -> Finding {
    Finding { rule, schedule: path.iter().map(|step| format!("{step:?}")).collect() }
}
