//! One storage request over all its layers: what the join makes and the report and the exporters read.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs};
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{
    BioEvent, CommitEvent, ContextSource, RequestEvent, SyscallEvent, TaskEvent, TraceContext,
};
pub use blkkin_wire::fragment::FragmentKind;
use blkkin_wire::ids::{DeviceId, Source, SpanId, TraceId};
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcSide};
use serde::{Deserialize, Serialize};

use crate::named::NamedFile;

/// What a trace began with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all traces are calls: a box would only add an allocation"
)]
pub enum Root {
    /// A system call.
    Call(SyscallEvent),
    /// A daemon's own operation: what it did for it, calls and further operations, are traces with the same id.
    Operation(Box<DaemonSpanEvent>),
    /// A journal commit: the kernel's own work on behalf of those who waited for it.
    Commit(CommitEvent),
    /// The first bio (or, without one, the first request) is the root: the kernel's own work (write-back, metadata).
    Kernel,
    /// The root's own record never came: it was lost, or had not returned when tracing ended. The children are
    /// true all the same.
    Missing,
}

/// Names of a call's files as they were at that call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Names {
    /// The task of the root (of a kernel root: of the first bio).
    pub task: Option<Arc<TaskEvent>>,
    /// The program of that task.
    pub exe: Option<Arc<NamedFile>>,
    /// What that task's process says of itself.
    pub process: Option<Arc<ProcessContextEvent>>,
    /// The primary file.
    pub file: Option<Arc<NamedFile>>,
    /// The second file.
    pub second_file: Option<Arc<NamedFile>>,
    /// The devices.
    pub devices: Arc<DeviceNames>,
}

/// Names of the devices met so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNames(pub BTreeMap<DeviceId, Arc<str>>);

/// What is known to be missing from a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The root's own record.
    pub root: bool,
    /// Bios that the root is known to have queued, and commands that it sent, and that did not come.
    pub bios: u32,
    /// Requests that bios name as their carrier, in this trace, and that did not come.
    pub requests: u32,
    /// Commits that the root call is known to have waited for and whose trace could not be awaited, as too many
    /// traces were open.
    pub commits: u32,
}

impl Missing {
    /// Nothing is.
    pub fn nothing(&self) -> bool {
        *self == Missing::default()
    }
}

/// The commit that a call waited for, shared by all calls that did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cause {
    /// The commit's own trace.
    pub trace: Arc<Trace>,
    /// This call is the one that the commit is shown below; to the others it is linked.
    pub primary: bool,
}

/// A bio of this trace that travelled in a request of another: the block layer had merged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The bio, of this trace.
    pub bio: SpanId,
    /// The trace that the request belongs to; none where its call had not returned by then, and may have been made for a span of
    /// an application's, in whose trace it is then.
    pub trace: Option<TraceId>,
    /// The request.
    pub request: RequestEvent,
}

impl Carried {
    /// Where the trace of the request began.
    pub(crate) fn root(&self) -> SpanId {
        if self.request.parent.is_some() { self.request.root } else { self.request.span }
    }
}

/// A commit's place in a trace that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adoption {
    /// The trace of the call that the commit is shown below.
    pub trace: TraceId,
    /// That call.
    pub call: SpanId,
}

/// How a trace hangs together with others of the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangs {
    /// There are no others, or nobody knows of them here.
    ByItself,
    /// The others are parts of what it began.
    Above,
    /// It is part of what another began, which ends after it.
    Below,
}

/// One storage request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// Its id.
    pub id: TraceId,
    /// The span at which it began, whether or not that span's record came.
    pub root_span: SpanId,
    /// Where its events came from.
    pub source: Source,
    /// Turns its times into wall clock.
    pub anchor: ClockAnchor,
    /// What it began with.
    pub root: Root,
    /// Bios of this trace, by queue time, then span.
    pub bios: Vec<BioEvent>,
    /// Requests of this trace, by start time, then span.
    pub requests: Vec<RequestEvent>,
    /// Bios of this trace in requests of others, in the order in which they ended.
    pub carried: Vec<Carried>,
    /// Commits that the root call waited for.
    pub causes: Vec<Cause>,
    /// For a commit: the call that it is shown below; whoever shows commits by themselves leaves it out.
    pub adopted_by: Option<Adoption>,
    /// Requests to or from other nodes that its spans were one end of.
    pub meetings: Vec<RpcEndpointEvent>,
    /// Names.
    pub names: Names,
    /// What is known to be missing.
    pub missing: Missing,
    /// Whether other parts of it were given out before.
    pub part: FragmentKind,
}

impl Trace {
    /// A trace of which nothing is known yet but where it began.
    pub fn new(source: Source, anchor: ClockAnchor, root: SpanId) -> Self {
        Trace {
            id: source.trace_id(root),
            root_span: root,
            source,
            anchor,
            root: Root::Missing,
            bios: Vec::new(),
            requests: Vec::new(),
            carried: Vec::new(),
            causes: Vec::new(),
            adopted_by: None,
            meetings: Vec::new(),
            names: Names::default(),
            missing: Missing::default(),
            part: FragmentKind::First,
        }
    }

    /// Makes of a trace that was given out a new one, of which nothing is known yet; what it has allocated serves again.
    pub(crate) fn begin(&mut self, source: Source, anchor: ClockAnchor, root: SpanId) {
        (self.id, self.root_span, self.source, self.anchor) = (source.trace_id(root), root, source, anchor);
        self.root = Root::Missing;
        self.bios.clear();
        self.requests.clear();
        self.carried.clear();
        self.causes.clear();
        self.adopted_by = None;
        self.meetings.clear();
        // The devices' names stay: they are nearly always the same, and are set again before it is given out.
        let Names { task, exe, process, file, second_file, devices: _ } = &mut self.names;
        (*task, *exe, *process, *file, *second_file) = (None, None, None, None, None);
        (self.missing, self.part) = (Missing::default(), FragmentKind::First);
    }

    /// What it began with is here. This decides whose trace it is: the application's or the daemon's own, where the call was made
    /// for a span of it or the root is one, and else the one that its machine, boot, start and root name. Nothing else does.
    pub(crate) fn take_root(&mut self, root: Root, names: Names) {
        (self.root, self.names) = (root, names);
        if let Root::Operation(operation) = &self.root {
            self.id = operation.trace;
        } else if let Some(context) = self.context() {
            self.id = context.trace;
        }
    }

    /// The application's span that its root was made for: above the root, and not among its spans.
    pub fn context(&self) -> Option<&TraceContext> {
        self.call().and_then(|call| call.context.as_deref())
    }

    /// It is in an application's own trace, and the thread said that the application samples that one. What a rule found out
    /// (`ContextSource::Events`) is of an operation on this node, which is sampled or not by itself.
    pub fn is_sampled_by_program(&self) -> bool {
        self.context()
            .is_some_and(|context| context.source == ContextSource::ThreadContext && context.is_sampled())
    }

    /// Puts bios and requests into their order.
    pub(crate) fn arrange(&mut self) {
        if self.bios.len() > 1 {
            self.bios.sort_unstable_by_key(|bio| (bio.queue, bio.span));
        }
        if self.requests.len() > 1 {
            self.requests.sort_unstable_by_key(|request| (request.start, request.span));
        }
    }

    /// When the root began.
    pub fn start(&self) -> MonotonicNs {
        match &self.root {
            Root::Call(call) => call.enter,
            Root::Commit(commit) => commit.start,
            Root::Operation(operation) => operation.begin,
            Root::Kernel | Root::Missing => {
                let bios = self.bios.iter().map(|b| b.queue);
                bios.chain(self.requests.iter().map(|r| r.start)).min().unwrap_or_default()
            }
        }
    }

    /// When the root ended: for a call its return, though bios that it left behind may end later.
    pub fn end(&self) -> MonotonicNs {
        match &self.root {
            Root::Call(call) => call.exit,
            Root::Commit(commit) => commit.end,
            Root::Operation(operation) => operation.end,
            Root::Kernel | Root::Missing => self.last_end(),
        }
    }

    /// When the last part of it ended.
    pub fn last_end(&self) -> MonotonicNs {
        let bios = self.bios.iter().map(|b| b.end);
        let parts = bios.chain(self.requests.iter().map(|r| r.complete)).max().unwrap_or_default();
        match &self.root {
            Root::Call(call) => parts.max(call.exit),
            Root::Commit(commit) => parts.max(commit.end),
            Root::Operation(operation) => parts.max(operation.end),
            Root::Kernel | Root::Missing => parts,
        }
    }

    /// The root's duration.
    pub fn duration(&self) -> DurationNs {
        self.end().since(self.start())
    }

    /// Whether its root was asked for by another node: its id is provisional then.
    pub fn answered(&self) -> bool {
        let answers = |met: &RpcEndpointEvent| met.side == RpcSide::Server && met.span == self.root_span;
        self.meetings.iter().any(answers)
    }

    /// How it hangs together with traces of the same id.
    pub fn hangs(&self) -> Hangs {
        match &self.root {
            Root::Operation(operation) if operation.parent_is_remote => Hangs::ByItself,
            Root::Operation(operation) if operation.parent.is_some() => Hangs::Below,
            Root::Operation(_) => Hangs::Above,
            Root::Call(call)
                if call
                    .context
                    .as_ref()
                    .is_some_and(|above| above.source != ContextSource::ThreadContext) =>
            {
                Hangs::Below
            }
            _ => Hangs::ByItself,
        }
    }

    /// The call at its root, if it is one.
    pub fn call(&self) -> Option<&SyscallEvent> {
        match &self.root {
            Root::Call(call) => Some(call),
            _ => None,
        }
    }
}
