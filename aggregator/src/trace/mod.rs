//! Data model of a trace: one storage operation over all its layers.
//!
//! *In*: events, from the join. *Out*: the traces that the report, the latency breakdown, the
//! stages and the span translation read.
//!
//! *Invariant*: a trace has the records themselves, unchanged. Each derived value (a phase, a tag,
//! a span) is computed from them on demand.
//!
//! *Rejected*: a tree of spans as the model. It would fix one presentation, and the report needs
//! sums over layers and devices.

pub mod async_io;
mod disk_endpoints;
pub(crate) mod id_map;
pub mod interned_file;
pub mod page_cache;
pub mod page_origins;
pub mod stacked;
pub mod thread_attributes;

use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs};
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{
    BioEvent, CommitEvent, ContextSource, FaultEvent, RequestEvent, SyscallEvent, TaskEvent, TraceContext,
};
pub use blkkin_wire::fragment::FragmentKind;
use blkkin_wire::ids::{DeviceId, Source, SpanId, TraceId};
use blkkin_wire::page_origin::PageOriginEvent;
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcSide};
use blkkin_wire::virtual_machine::VirtualMachineEvent;
use serde::{Deserialize, Serialize};

use self::async_io::AsyncIo;
use self::interned_file::InternedFile;
use self::page_origins::OriginNames;

/// Root of a trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all traces are calls: a box would only add an allocation"
)]
pub enum Root {
    /// A system call.
    Call(SyscallEvent),
    /// A daemon span. The calls and further daemon spans of its work are traces of the same id.
    DaemonSpan(Box<DaemonSpanEvent>),
    /// Asynchronous I/O that no call submitted: the submission with the root's span.
    AsyncIo,
    /// A journal commit: work of the kernel for the calls that waited for it.
    Commit(CommitEvent),
    /// Work of the kernel itself (write-back, metadata). The first bio is the root or, without one,
    /// the first request.
    Kernel,
    /// The root's own record never arrived: it was lost, or the root had not ended when tracing
    /// ended. The child records are valid.
    Missing,
    /// A page fault outside any system call.
    Fault(FaultEvent),
}

/// Names of a trace's task, files and devices, as of the root's event.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Names {
    /// Task of the root (of a kernel root: of the first bio).
    pub task: Option<Arc<TaskEvent>>,
    /// Program of that task.
    pub exe: Option<Arc<InternedFile>>,
    /// Further names of that task's process, if it has any.
    pub process: Option<Arc<ProcessNames>>,
    /// Virtual machine that the node is.
    pub node_machine: Option<Arc<VirtualMachineEvent>>,
    /// Primary file of a call; mapped file of a page fault.
    pub file: Option<Arc<InternedFile>>,
    /// Second file.
    pub second_file: Option<Arc<InternedFile>>,
    /// Devices.
    pub devices: Arc<DeviceNames>,
}

/// Names that few processes have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessNames {
    /// Process context that it publishes.
    pub context: Option<ProcessContextEvent>,
    /// Virtual machine that it runs.
    pub virtual_machine: Option<VirtualMachineEvent>,
}

impl ProcessNames {
    /// Returns the virtual machine that the process runs, if it has a name.
    pub(crate) fn named_machine(&self) -> Option<&VirtualMachineEvent> {
        self.virtual_machine.as_ref().filter(|machine| !machine.shown_name().is_empty())
    }
}

impl Names {
    /// Returns the process context of the task's process.
    pub fn process_context(&self) -> Option<&ProcessContextEvent> {
        self.process.as_ref()?.context.as_ref()
    }

    /// Returns the virtual machine that the task's process runs, else the one that it runs in.
    pub fn virtual_machine(&self) -> Option<&VirtualMachineEvent> {
        let own = self.process.as_ref().and_then(|process| process.named_machine());
        own.or(self.node_machine.as_deref().filter(|machine| !machine.shown_name().is_empty()))
    }

    /// Returns the comm of the task and its virtual machine: `worker (VM web1)`.
    pub fn comm(&self) -> Option<Arc<str>> {
        let comm = &self.task.as_ref()?.comm;
        Some(match self.virtual_machine() {
            Some(machine) => format!("{comm} (VM {})", machine.shown_name()).into(),
            None => Arc::clone(comm),
        })
    }
}

/// Names of the devices known so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNames {
    /// Name below /dev.
    pub names: BTreeMap<DeviceId, Arc<str>>,
    /// Name of a virtual machine's disk ([`DeviceEvent::disk`](blkkin_wire::event::DeviceEvent::disk)).
    pub disks: BTreeMap<DeviceId, Arc<str>>,
}

impl<const N: usize> From<[(DeviceId, Arc<str>); N]> for DeviceNames {
    /// Names devices, none of which is a virtual machine's disk.
    fn from(names: [(DeviceId, Arc<str>); N]) -> Self {
        DeviceNames { names: names.into(), disks: BTreeMap::new() }
    }
}

/// Parts of a trace that are known to be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incomplete {
    /// True if the root's own record is missing.
    pub root: bool,
    /// Number of bios that the root queued, and passthrough requests that it sent, that did not
    /// arrive.
    pub bios: u32,
    /// Number of requests that bios of this trace name as their child and that did not arrive.
    pub requests: u32,
    /// Number of commits for which the root call waited and whose trace could not be awaited
    /// because too many traces were open.
    pub commits: u32,
    /// Number of origins of pages that bios of this trace announce and that did not arrive.
    pub page_origins: u32,
}

impl Incomplete {
    /// Returns whether no part is missing.
    pub fn is_empty(&self) -> bool {
        *self == Incomplete::default()
    }
}

/// Span link from a call to a commit for which it waited (`waited_for`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WaitLink {
    /// Trace of the commit, shared by all calls that waited.
    pub trace: Arc<Trace>,
    /// True if the commit is shown as a child of this call. The other calls have a span link only.
    pub primary: bool,
}

/// Span link from a bio of this trace to a request of another trace that it was merged into
/// (`merged_into`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeLink {
    /// Bio of this trace.
    pub bio: SpanId,
    /// Trace of the request. None if the request's call had not returned by then and may belong to
    /// a span of an application, and so to the application's trace.
    pub trace: Option<TraceId>,
    /// Request.
    pub request: RequestEvent,
}

impl MergeLink {
    /// Returns the root span of the request's trace.
    pub(crate) fn root(&self) -> SpanId {
        if self.request.parent.is_some() { self.request.root } else { self.request.span }
    }
}

/// Position of a commit in the trace of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownIn {
    /// Trace of the call.
    pub trace: TraceId,
    /// Span of the call. The commit is shown as its child.
    pub call: SpanId,
}

/// Role of a trace among the traces of the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceRole {
    /// The only trace of its id, as far as this node knows.
    Standalone,
    /// Root of the other traces of its id.
    Root,
    /// Child of another trace of its id, which ends after it.
    Child,
}

/// Trace of a storage operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// Trace id.
    pub id: TraceId,
    /// Root span, whether or not its record arrived.
    pub root_span: SpanId,
    /// Source of its events.
    pub source: Source,
    /// Anchor that converts its times to wall clock.
    pub anchor: ClockAnchor,
    /// Root.
    pub root: Root,
    /// Bios of this trace, by queue time, then span.
    pub bios: Vec<BioEvent>,
    /// Requests of this trace, by start time, then span.
    pub requests: Vec<RequestEvent>,
    /// Asynchronous I/O of this trace, by submission time, then span.
    pub async_ios: Vec<AsyncIo>,
    /// Bios of this trace in requests of other traces, in the order in which they ended.
    pub merged_into: Vec<MergeLink>,
    /// Commits for which the root call waited.
    pub waited_for: Vec<WaitLink>,
    /// For a commit: the call that shows it. A consumer that shows commits on their own skips it.
    pub shown_in: Option<ShownIn>,
    /// RPC endpoints of its spans, toward other nodes.
    pub rpc_endpoints: Vec<RpcEndpointEvent>,
    /// Origins of the pages of its bios, by queue time, then bio.
    pub page_origins: Vec<PageOriginEvent>,
    /// Names.
    pub names: Names,
    /// Names of the page origins.
    pub origin_names: OriginNames,
    /// Parts that are known to be missing.
    pub incomplete: Incomplete,
    /// Kind of the fragment: `Late` if an earlier one was emitted.
    pub kind: FragmentKind,
}

impl Trace {
    /// Creates a trace of which only the root span is known.
    pub fn new(source: Source, anchor: ClockAnchor, root: SpanId) -> Self {
        Trace {
            id: source.trace_id(root),
            root_span: root,
            source,
            anchor,
            root: Root::Missing,
            bios: Vec::new(),
            requests: Vec::new(),
            async_ios: Vec::new(),
            merged_into: Vec::new(),
            waited_for: Vec::new(),
            shown_in: None,
            rpc_endpoints: Vec::new(),
            page_origins: Vec::new(),
            names: Names::default(),
            origin_names: OriginNames::default(),
            incomplete: Incomplete::default(),
            kind: FragmentKind::First,
        }
    }

    /// Resets an emitted trace for reuse. Its allocations are retained.
    pub(crate) fn reset(&mut self, source: Source, anchor: ClockAnchor, root: SpanId) {
        (self.id, self.root_span, self.source, self.anchor) = (source.trace_id(root), root, source, anchor);
        self.root = Root::Missing;
        self.bios.clear();
        self.requests.clear();
        self.async_ios.clear();
        self.merged_into.clear();
        self.waited_for.clear();
        self.shown_in = None;
        self.rpc_endpoints.clear();
        if !self.page_origins.is_empty() {
            self.page_origins.clear();
            self.origin_names.clear();
        }
        // The device names stay. They rarely change, and are set again before the trace is emitted.
        let Names { task, exe, process, node_machine, file, second_file, devices: _ } = &mut self.names;
        (*task, *exe, *process, *node_machine) = (None, None, None, None);
        (*file, *second_file) = (None, None);
        (self.incomplete, self.kind) = (Incomplete::default(), FragmentKind::First);
    }

    /// Sets the root, and with it the trace id. A call or page fault of an application's span, and a
    /// daemon span, have the id of that trace. Every other trace has the id made of its node, boot,
    /// start and root. Nothing else decides it.
    /// Inlined, so that the caller constructs the root in place: a call is 264 B.
    #[inline(always)]
    pub(crate) fn set_root(&mut self, root: Root, names: Names) {
        (self.root, self.names) = (root, names);
        if let Root::DaemonSpan(operation) = &self.root {
            self.id = operation.trace;
        } else if let Some(context) = self.context() {
            self.id = context.trace;
        }
    }

    /// Returns the application's span for which the root call was made or the root page fault occurred. It is the root's parent and
    /// not among the trace's spans.
    pub fn context(&self) -> Option<&TraceContext> {
        match &self.root {
            Root::Call(call) => call.context.as_deref(),
            Root::Fault(fault) => fault.context.as_deref(),
            _ => None,
        }
    }

    /// Returns whether the trace belongs to an application's trace that the application samples, by
    /// its thread context. A context that a rule derived (`ContextSource::DaemonSpan`) belongs to a
    /// daemon span on this node, which is sampled on its own.
    pub fn is_sampled_by_application(&self) -> bool {
        self.context()
            .is_some_and(|context| context.source == ContextSource::ThreadContext && context.is_sampled())
    }

    /// Sorts bios, requests and page origins.
    pub(crate) fn sort_parts(&mut self) {
        if self.bios.len() > 1 {
            self.bios.sort_unstable_by_key(|bio| (bio.queue, bio.span));
        }
        if self.requests.len() > 1 {
            self.requests.sort_unstable_by_key(|request| (request.start, request.span));
        }
        if self.page_origins.len() > 1 {
            self.page_origins.sort_unstable_by_key(|origin| (origin.time, origin.bio));
        }
        if self.async_ios.len() > 1 {
            self.async_ios.sort_unstable_by_key(|io| (io.event.start, io.event.span));
        }
    }

    /// Returns whether it consists of origins of bios that are not in it.
    pub(crate) fn has_only_page_origins(&self) -> bool {
        matches!(self.root, Root::Missing)
            && !self.page_origins.is_empty()
            && self.bios.is_empty()
            && self.requests.is_empty()
            && self.async_ios.is_empty()
            && self.rpc_endpoints.is_empty()
    }

    /// Returns the begin of the root.
    pub fn start(&self) -> MonotonicNs {
        match &self.root {
            Root::Call(call) => call.enter,
            Root::Commit(commit) => commit.start,
            Root::Fault(fault) => fault.begin,
            Root::DaemonSpan(operation) => operation.begin,
            Root::AsyncIo => self.root_async_io().map(|io| io.event.start).unwrap_or_default(),
            Root::Kernel | Root::Missing => {
                let bios = self.bios.iter().map(|b| b.queue);
                let async_ios = self.async_ios.iter().map(|io| io.event.start);
                bios.chain(self.requests.iter().map(|r| r.start)).chain(async_ios).min().unwrap_or_default()
            }
        }
    }

    /// Returns the end of the root. For a call this is its return, although its bios may end later.
    pub fn end(&self) -> MonotonicNs {
        match &self.root {
            Root::Call(call) => call.exit,
            Root::Commit(commit) => commit.end,
            Root::Fault(fault) => fault.end,
            Root::DaemonSpan(operation) => operation.end,
            Root::AsyncIo => self.root_async_io().map(|io| io.event.end).unwrap_or_default(),
            Root::Kernel | Root::Missing => self.last_end(),
        }
    }

    /// Returns the end of the part that ended last.
    pub fn last_end(&self) -> MonotonicNs {
        let bios = self.bios.iter().map(|b| b.end);
        let async_ios = self.async_ios.iter().map(|io| io.event.end);
        let parts =
            bios.chain(self.requests.iter().map(|r| r.complete)).chain(async_ios).max().unwrap_or_default();
        match &self.root {
            Root::Call(call) => parts.max(call.exit),
            Root::Commit(commit) => parts.max(commit.end),
            Root::Fault(fault) => parts.max(fault.end),
            Root::DaemonSpan(operation) => parts.max(operation.end),
            Root::AsyncIo | Root::Kernel | Root::Missing => parts,
        }
    }

    /// Returns the duration of the root.
    #[inline]
    pub fn duration(&self) -> DurationNs {
        // Nearly all traces are calls.
        match &self.root {
            Root::Call(call) => call.exit.since(call.enter),
            _ => self.end().since(self.start()),
        }
    }

    /// Returns whether the root serves a request of another node. Its trace id is provisional then.
    pub fn has_remote_client(&self) -> bool {
        let serves =
            |endpoint: &RpcEndpointEvent| endpoint.side == RpcSide::Server && endpoint.span == self.root_span;
        self.rpc_endpoints.iter().any(serves)
            || self.disk_servers().iter().any(|server| serves(&server.endpoint))
    }

    /// Returns the role of this trace among the traces of the same id.
    pub fn role(&self) -> TraceRole {
        match &self.root {
            Root::DaemonSpan(operation) if operation.parent_is_remote => TraceRole::Standalone,
            Root::DaemonSpan(operation) if operation.parent.is_some() => TraceRole::Child,
            Root::DaemonSpan(_) => TraceRole::Root,
            Root::Call(call)
                if call
                    .context
                    .as_ref()
                    .is_some_and(|context| context.source != ContextSource::ThreadContext) =>
            {
                TraceRole::Child
            }
            _ => TraceRole::Standalone,
        }
    }

    /// Returns the call at the root, if it is one.
    pub fn call(&self) -> Option<&SyscallEvent> {
        match &self.root {
            Root::Call(call) => Some(call),
            _ => None,
        }
    }
}
