//! A scenario: some processes on a simulated cluster, and the steps of all of them.
//!
//! *In*: a [`Scenario`]. *Out*: a [`System`] for the search. *Invariant*: a step is one call of one
//! process, one event of the cluster, or one fault.

use std::cell::RefCell;
use std::rc::Rc;

use blkkin_wire::fragment::StageId;
use corosensei::CoroutineResult;

use super::super::state_store::StateStore;
use super::process::{Call, Choice, Process, SharedWorld, end, read_state};
use super::search::System;
use super::world::{Request, World};

pub(super) type Spawn = Rc<dyn Fn(&SharedWorld, usize) -> Process>;
type Check = Rc<dyn Fn(&World) -> Option<String>>;

/// Processes and rules.
#[derive(Clone)]
pub(super) struct Scenario {
    /// Stage of each group.
    pub(super) stages: Vec<StageId>,
    /// Starts the process of each slot.
    pub(super) spawn: Vec<Spawn>,
    /// Returns the rule that a state breaks.
    pub(super) check: Check,
    /// Returns what is missing at the end.
    pub(super) missing: Check,
}

/// Step of a schedule.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "some fields are only printed")]
pub(super) enum Step {
    Start {
        process: usize,
    },
    Kill {
        process: usize,
    },
    /// A process continues from a call.
    Call {
        process: usize,
        call: Call,
        choice: Choice,
    },
    /// The first record of a producer's queue arrives.
    Deliver {
        process: usize,
    },
    /// The coordinator evicts a member.
    Evict {
        group: usize,
        member: u32,
        of_process: usize,
    },
    /// A previous stage writes a record; the second time it repeats it.
    Feed {
        n: usize,
    },
    /// A request that was under way arrives.
    Arrive {
        n: usize,
        request: Request,
    },
}

impl Step {
    /// Returns the rank of a step where each group has one process: a step of a lower rank waits,
    /// since its order makes no difference that a reader could see.
    fn rank(&self) -> u8 {
        match self {
            Step::Start { .. } | Step::Deliver { .. } | Step::Evict { .. } => 0,
            Step::Call { call: Call::Committed | Call::ReadState | Call::Flush, .. } => 0,
            Step::Call { choice: Choice::Assigned(_) | Choice::Lost, .. } => 0,
            Step::Call { call: Call::Commit, .. } => 1,
            Step::Call { choice: Choice::Record(_), .. } => 2,
            _ => 3,
        }
    }
}

/// Retains the first step of the lowest rank, or all reads, or all saves and writes; and the faults.
fn coarse(mut steps: Vec<(Step, bool)>) -> Vec<(Step, bool)> {
    let faultless = steps.iter().filter(|(_, fault)| !fault);
    let Some(first) = faultless.min_by_key(|(step, _)| step.rank()).cloned() else { return steps };
    match first.0.rank() {
        0 => steps = vec![first],
        1 => {
            let of_this = |step: &Step| matches!((step, &first.0), (Step::Kill { process }, Step::Call { process: other, .. }) if process == other);
            steps.retain(|(step, fault)| *fault && of_this(step));
            steps.insert(0, first);
        }
        rank => steps.retain(|(step, fault)| *fault || step.rank() == rank),
    }
    steps
}

/// Running scenario.
pub(super) struct Simulation {
    scenario: Scenario,
    world: SharedWorld,
    /// Coroutine of each slot and the call at which it is suspended.
    running: Vec<Option<(Process, Call)>>,
}

impl Simulation {
    pub(super) fn new(scenario: &Scenario, world: World) -> Simulation {
        let running = scenario.spawn.iter().map(|_| None).collect();
        Simulation { scenario: scenario.clone(), world: Rc::new(RefCell::new(world)), running }
    }

    fn resume(&mut self, slot: usize, mut process: Process, choice: Choice) {
        match process.resume(choice) {
            CoroutineResult::Yield(call) => self.running[slot] = Some((process, call)),
            CoroutineResult::Return(result) => {
                end(process);
                let why = result.map_or_else(|error| error.to_string(), |()| "no reason".to_owned());
                self.world.borrow_mut().ended = Some(format!("process {slot} has ended: {why}"));
            }
        }
    }

    fn kill(&mut self, slot: usize) {
        if let Some((process, _)) = self.running[slot].take() {
            end(process);
        }
        let world = &mut *self.world.borrow_mut();
        world.faults.kills -= 1;
        let process = &mut world.processes[slot];
        process.client = Default::default();
        let last = std::mem::take(&mut process.queue).into_iter().next();
        world.requests.extend(last.map(|last| Request::Produce {
            topic: last.topic,
            partition: last.partition,
            entry: last.entry,
        }));
    }

    fn start(&mut self, slot: usize) {
        {
            let process = &mut self.world.borrow_mut().processes[slot];
            process.life += 1;
            (process.draws, process.history) = (0, 0);
            process.clock = Default::default();
        }
        let process = (self.scenario.spawn[slot])(&self.world, slot);
        self.resume(slot, process, Choice::Go);
    }

    fn evict(&mut self, group: usize, member: u32) {
        let world = &mut *self.world.borrow_mut();
        if let Some(of) = world.groups[group].members.get(&member).copied()
            && world.member_is_live(of, member)
        {
            world.faults.evictions -= 1;
        }
        world.groups[group].remove(member);
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.running.iter_mut().filter_map(Option::take).for_each(|(process, _)| end(process));
    }
}

/// Returns how a poll can continue, in the order of a fair scheduler.
fn events(world: &World, slot: usize) -> Vec<Choice> {
    let process = &world.processes[slot];
    let (client, group) = (&process.client, &world.groups[process.group]);
    let mut events = Vec::new();
    if let Some(member) = client.member {
        if group.fenced.contains(&member) {
            events.push(Choice::Fenced);
        } else if !group.members.contains_key(&member) {
            events.push(Choice::Lost);
        } else {
            for partition in 0..group.partitions {
                let (mine, owner) = (group.target(partition) == Some(member), group.owners.get(&partition));
                if client.assigned.contains_key(&partition) && !mine {
                    events.push(Choice::Revoked(partition));
                } else if !client.assigned.contains_key(&partition)
                    && owner.map_or(mine, |owner| *owner == member)
                {
                    events.push(Choice::Assigned(partition));
                }
            }
        }
    }
    if client.rejected {
        // The reply to its commit was the news.
        return events;
    }
    for (partition, next) in &client.assigned {
        if world.log(&process.topic, *partition).len() as i64 > *next {
            events.push(Choice::Record(*partition));
        }
    }
    if client.active && !(world.coarse && events.iter().any(|event| matches!(event, Choice::Record(_)))) {
        events.push(Choice::Pause);
    }
    events
}

fn choices(world: &World, slot: usize, call: Call) -> Vec<(Choice, bool)> {
    let mut choices = Vec::new();
    match call {
        Call::Next => choices.extend(events(world, slot).into_iter().map(|choice| (choice, false))),
        Call::Committed | Call::ReadState => choices.push((Choice::Go, false)),
        Call::Flush => {
            if world.processes[slot].queue.is_empty() {
                choices.push((Choice::Go, false));
            } else if world.faults.flushes > 0 {
                choices.push((Choice::LoseReply, true));
            }
        }
        Call::Commit => {
            choices.push((Choice::Go, false));
            if world.faults.lost_replies > 0 {
                choices.push((Choice::LoseReply, true));
            }
            if world.faults.late_commits > 0 {
                choices.push((Choice::Delay, true));
            }
        }
    }
    choices
}

impl System for Simulation {
    type Step = Step;

    fn steps(&self) -> Vec<(Step, bool)> {
        let world = self.world.borrow();
        let slots = 0..self.running.len();
        // No other process sees this step, so its order does not matter.
        let flushed = |slot: &usize| {
            matches!(self.running[*slot], Some((_, Call::Flush))) && world.processes[*slot].queue.is_empty()
        };
        if let Some(process) = slots.clone().find(flushed) {
            return vec![(Step::Call { process, call: Call::Flush, choice: Choice::Go }, false)];
        }
        let mut steps = Vec::new();
        for (n, fed) in world.feed.iter().enumerate() {
            if fed.written == 0 || (fed.written == 1 && world.faults.duplicates > 0) {
                steps.push((Step::Feed { n }, fed.written > 0));
            }
        }
        let queued = slots.clone().filter(|slot| !world.processes[*slot].queue.is_empty());
        steps.extend(queued.map(|process| (Step::Deliver { process }, false)));
        for (n, request) in world.requests.iter().enumerate() {
            let waited_for = match request {
                Request::Join { slot, life } => {
                    world.processes[*slot].life == *life && self.running[*slot].is_some()
                }
                _ => false,
            };
            steps.push((Step::Arrive { n, request: request.clone() }, !waited_for));
        }
        for process in slots {
            let Some((_, call)) = &self.running[process] else {
                steps.push((Step::Start { process }, false));
                continue;
            };
            let choices = choices(&world, process, *call).into_iter();
            steps.extend(choices.map(|(choice, fault)| (Step::Call { process, call: *call, choice }, fault)));
            if world.faults.kills > 0 && world.killable.contains(&process) {
                steps.push((Step::Kill { process }, true));
            }
        }
        for (group, of) in world.groups.iter().enumerate() {
            for (&member, &(of_process, life)) in &of.members {
                let live = world.member_is_live((of_process, life), member);
                if !live || world.faults.evictions > 0 {
                    steps.push((Step::Evict { group, member, of_process }, live));
                }
            }
        }
        if world.ended.is_some() {
            steps.clear();
        }
        steps.sort_by_key(|(_, fault)| *fault);
        if world.coarse { coarse(steps) } else { steps }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Start { process } => self.start(*process),
            Step::Kill { process } => self.kill(*process),
            Step::Call { process, choice, call } => {
                let mut world = self.world.borrow_mut();
                let faults = &mut world.faults;
                match (call, choice) {
                    (Call::Flush, Choice::LoseReply) => faults.flushes -= 1,
                    (_, Choice::LoseReply) => faults.lost_replies -= 1,
                    (_, Choice::Delay) => faults.late_commits -= 1,
                    _ => {}
                }
                drop(world);
                if let Some((coroutine, _)) = self.running[*process].take() {
                    self.resume(*process, coroutine, choice.clone());
                }
            }
            Step::Deliver { process } => self.world.borrow_mut().deliver(*process),
            Step::Feed { n } => {
                let mut world = self.world.borrow_mut();
                world.faults.duplicates -= u8::from(world.feed[*n].written > 0);
                world.feed(*n);
            }
            Step::Evict { group, member, .. } => self.evict(*group, *member),
            Step::Arrive { n, .. } => self.world.borrow_mut().arrive(*n),
        }
    }

    fn fingerprint(&self) -> u64 {
        let alive: Vec<bool> = self.running.iter().map(Option::is_some).collect();
        super::world::hash(&(self.world.borrow().fingerprint(), alive))
    }

    fn violation(&self) -> Option<String> {
        let world = self.world.borrow();
        let readable = |group: usize, partition: i32, state_ref: &_| {
            let stage = self.scenario.stages[group];
            let store = StateStore { stage, partition, partitions: 1, bytes_max: usize::MAX };
            read_state(&world, &store, state_ref).state(state_ref).map(drop)
        };
        let ended = world.ended.clone();
        ended.or_else(|| world.unreadable_state(readable)).or_else(|| (self.scenario.check)(&world))
    }

    fn unfinished(&self) -> Option<String> {
        (self.scenario.missing)(&self.world.borrow())
    }
}
