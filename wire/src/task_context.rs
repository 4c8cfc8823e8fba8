//! References of an event to its task and to the application span that the task's thread worked for.

use serde::{Deserialize, Serialize};

pub use crate::ids::TaskRef;
use crate::ids::{SpanId, TraceId};

/// The span that a thread works for, with its trace, as in `traceparent`. Its source is the
/// thread's own publication (OpenTelemetry's thread context, OTEP 4947), the events of a daemon, or
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TraceContext {
    /// Trace of the application; not 0.
    pub trace: TraceId,
    /// Span of the application: the parent of the system call. Not 0.
    pub span: SpanId,
    /// Trace flags (W3C trace context, level 2): bit 0 is *sampled*.
    pub flags: u8,
    /// Evidence for this context.
    pub source: ContextSource,
}

/// Evidence for a trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ContextSource {
    /// Exact: the thread published it, and the tracer read it at the call.
    ThreadContext,
    /// Rule: the last daemon span that the thread's events reported as active before the call
    /// returned. The daemon span is an event of this node too.
    DaemonSpan,
    /// Exact: the thread published it, and the tracer read it at the call. It is also a daemon span
    /// of this node.
    Both,
}

impl TraceContext {
    /// Returns whether the application may have recorded its span.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 != 0
    }
}
