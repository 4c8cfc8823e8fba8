//! Spans: from the call that begins one until it is dropped.
//!
//! *In*: the daemon's calls. *Out*: events of the provider `blkkin`.
//!
//! *Invariant*: whether a span is recorded is decided once, where it begins. It is recorded if a
//! session has `begin` enabled and sampling kept its root. A span that is not recorded emits
//! nothing, and neither do its children, with one exception. If tracing was off when the parent
//! began, a child that begins later is a root. Otherwise the span of a connection that is older
//! than the session would hide every request on it.
//!
//! The thread that works for a span is marked separately ([`Span::enter`],
//! [`ScopedSpan`](crate::ScopedSpan), [`Instrument`](crate::Instrument)). A span may begin on one
//! thread, be entered by others, and end on another one. Each mark is emitted as an event and
//! published in the thread's memory ([`crate::thread_context`]).

use std::ffi::{CStr, c_char};
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::probe::BLKKIN_ENTER;
use crate::span_context::SpanContext;
use crate::thread_attributes::ThreadAttributes;
use crate::{ids, probe, sampling, thread_context};

/// Role of a span in an exchange, as in OpenTelemetry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum SpanKind {
    /// Internal work of the daemon.
    Internal = 0,
    /// Handling of a client's request.
    Server = 1,
    /// A request to a server.
    Client = 2,
}

/// Side of a request that crosses a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RpcSide {
    /// The span sent the request.
    Client = 0,
    /// The span answered the request.
    Server = 1,
}

/// `sampled_per_million` of a root while sampling is off.
pub(crate) const ALL: u32 = 1_000_000;

/// `sampled_per_million` of a span that is not recorded and has no context.
const UNRECORDED: u32 = 0;
/// `sampled_per_million` of a span that is not recorded and propagates a context.
const PROPAGATES: u32 = u32::MAX;

/// An operation of the daemon. It ends when it is dropped.
///
/// While no session records, making a root writes two words. A field that is never read is not
/// written.
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    /// Sampling ratio of the root; UNRECORDED or PROPAGATES if this span is not recorded.
    sampled_per_million: u32,
    /// Positive errno of the operation; 0 for success.
    status: AtomicI32,
    /// Service of the span and its children.
    service: Service,
    /// Written unless `sampled_per_million` is UNRECORDED.
    context: MaybeUninit<SpanContext>,
}

impl Span {
    /// Begins a root span, and with it a trace.
    #[inline]
    pub fn root(kind: SpanKind, name: &'static CStr, service: &'static CStr) -> Self {
        let service = Service::of(service);
        if probe::is_enabled() {
            return Self::unrecorded(service).begun(ALL, kind, name, false);
        }
        Self::unrecorded(service)
    }

    /// Begins a child of this span, of the same service.
    #[inline]
    pub fn child(&self, kind: SpanKind, name: &'static CStr) -> Self {
        if probe::is_enabled() {
            return self.unrecorded_child().begun(self.child_sampled_per_million(), kind, name, false);
        }
        self.unrecorded_child()
    }

    /// Begins a child of a remote span, which `context` names. With [`SpanContext::NONE`] it begins
    /// a trace. While no session records, the span propagates `context` unchanged.
    #[inline]
    pub fn continued(
        context: SpanContext,
        kind: SpanKind,
        name: &'static CStr,
        service: &'static CStr,
    ) -> Self {
        let service = Service::of(service);
        if probe::is_enabled() {
            return Self::propagating(context, service).begun(ALL, kind, name, false);
        }
        Self::propagating(context, service)
    }

    /// Returns a span that is never recorded. A child of it is a root.
    pub fn none() -> Self {
        Self::unrecorded(Service::of(c""))
    }

    /// Returns the context to send with a request, which the server passes to [`Span::continued`].
    /// [`SpanContext::NONE`] while no session records.
    #[inline]
    pub fn context(&self) -> SpanContext {
        match self.sampled_per_million {
            UNRECORDED => SpanContext::NONE,
            // SAFETY: it is written unless UNRECORDED.
            _ => unsafe { self.context.assume_init() },
        }
    }

    /// Returns whether the events of this span are recorded. Check it before computing a value only
    /// for [`set_text`](Self::set_text).
    #[inline(always)]
    pub fn is_recording(&self) -> bool {
        (1..=ALL).contains(&self.sampled_per_million)
    }

    /// Sets an attribute to a string.
    #[inline]
    pub fn set_text(&self, key: &CStr, val: &CStr) {
        if self.is_recording() {
            self.emit(|probe, span| {
                // SAFETY: both strings end in a NUL and live during the call.
                unsafe { (probe.text)(span, key.as_ptr(), val.as_ptr()) }
            });
        }
    }

    /// Sets an attribute to a number.
    #[inline]
    pub fn set_number(&self, key: &CStr, val: i64) {
        if self.is_recording() {
            self.emit(|probe, span| {
                // SAFETY: the key ends in a NUL and lives during the call.
                unsafe { (probe.number)(span, key.as_ptr(), val) }
            });
        }
    }

    /// Adds an event at the current time.
    #[inline]
    pub fn add_event(&self, name: &CStr) {
        if self.is_recording() {
            self.emit(|probe, span| {
                // SAFETY: the name ends in a NUL and lives during the call.
                unsafe { (probe.event)(span, name.as_ptr()) }
            });
        }
    }

    /// Marks this span as one endpoint of a request that crossed `connection`. `cookie` is the
    /// protocol's own id of the request. Two endpoints with the same protocol, connection and cookie
    /// are linked. `connection` names both addresses, the client's first. `unique` states that a
    /// cookie occurs only once on this connection.
    ///
    /// A server on another machine calls `add_event(c"answers")` just before it sends the reply.
    /// The client may have the reply before the end of this span is emitted, and the two clocks
    /// would be compared by that end.
    #[inline]
    pub fn rpc_endpoint(&self, side: RpcSide, protocol: &CStr, connection: &CStr, cookie: u64, unique: bool) {
        if self.is_recording() {
            self.emit(|probe, span| {
                let (protocol, connection) = (protocol.as_ptr(), connection.as_ptr());
                // SAFETY: both strings end in a NUL and live during the call.
                unsafe {
                    (probe.rpc_endpoint)(span, side as u8, u8::from(unique), protocol, connection, cookie)
                }
            });
        }
    }

    /// Sets the error of the operation to a positive errno. The last call counts.
    #[inline]
    pub fn set_error(&self, errno: i32) {
        self.status.store(errno, Ordering::Relaxed);
    }

    /// Makes this the current span of the thread until the guard is dropped. Guards nest: the
    /// innermost span is current.
    #[inline]
    pub fn enter(&self) -> Entered<'_> {
        self.publish();
        self.emit_if_recording(|probe, span| probe.emit_switch(0, span));
        Entered { span: self, on_this_thread: PhantomData }
    }

    /// Publishes this span as the thread's context, and returns its key if that was necessary.
    #[inline]
    pub(crate) fn publish(&self) -> Option<u64> {
        thread_context::needs_publishing(self.sampled_per_million != UNRECORDED).then(|| {
            let key = self.key();
            thread_context::enter(key, &self.context());
            key
        })
    }

    /// Returns the key by which the span is entered and left. A span without an id uses its
    /// address, which is stable while entered.
    fn key(&self) -> u64 {
        match self.sampled_per_million {
            UNRECORDED => (&raw const *self).addr() as u64,
            _ => self.context().span,
        }
    }

    /// Makes a span that is not yet recorded and has no parent.
    #[inline(always)]
    pub(crate) fn unrecorded(service: Service) -> Self {
        Self {
            sampled_per_million: UNRECORDED,
            status: AtomicI32::new(0),
            service,
            context: MaybeUninit::uninit(),
        }
    }

    /// Makes a span that is not yet recorded, with the context of its parent.
    #[inline(always)]
    pub(crate) fn propagating(parent: SpanContext, service: Service) -> Self {
        Self {
            sampled_per_million: PROPAGATES,
            status: AtomicI32::new(0),
            service,
            context: MaybeUninit::new(parent),
        }
    }

    /// Makes a child of this span that is not yet recorded.
    #[inline(always)]
    pub(crate) fn unrecorded_child(&self) -> Self {
        match self.sampled_per_million {
            UNRECORDED => Self::unrecorded(self.service),
            _ => Self::propagating(self.context(), self.service),
        }
    }

    /// Returns the sampling ratio of a child's root, per million. 0 if a child is not recorded or
    /// is a root.
    #[inline(always)]
    pub(crate) fn child_sampled_per_million(&self) -> u32 {
        if self.is_recording() { self.sampled_per_million } else { 0 }
    }

    /// Begins a span that is not yet recorded and has the context of its parent. Without a context
    /// it becomes a root.
    ///
    /// Callers return this result, or else a span made in place. A span that is written at two
    /// places is copied even while no session records, and that took 7 ns.
    #[cold]
    #[inline(never)]
    pub(crate) fn begun(mut self, kept: u32, kind: SpanKind, name: &'static CStr, on: bool) -> Self {
        self.begin(kept, kind, name, on);
        self
    }

    /// Assigns ids and emits the begin. A root that sampling drops gets only ids, so that no remote
    /// service takes its children for roots.
    fn begin(&mut self, kept: u32, kind: SpanKind, name: &'static CStr, on: bool) {
        let Some(probe) = probe::table() else { return };
        if self.assign_ids(probe, kept) {
            self.emit_begin(probe, kind, name, on);
        }
    }

    /// Assigns the ids, and returns whether the span is recorded.
    fn assign_ids(&mut self, probe: &probe::Table, kept: u32) -> bool {
        let parent = self.context();
        let (context, kept) = if parent.is_none() {
            let kept = sampling::keep_root(probe);
            // The trace id is the root's span id, as in Zipkin. That saves one id to draw and to
            // emit.
            let span = ids::next_id();
            (SpanContext { trace_lo: span, span, sampled: kept != 0, ..SpanContext::NONE }, kept)
        } else if parent.sampled && kept != 0 {
            (SpanContext { span: ids::next_id(), parent: parent.span, ..parent }, kept)
        } else {
            return false;
        };
        self.context = MaybeUninit::new(context);
        self.sampled_per_million = if kept == 0 { PROPAGATES } else { kept };
        kept != 0
    }

    /// Emits the begin of this span. `on` states that this thread works for it until its end.
    fn emit_begin(&self, probe: &probe::Table, kind: SpanKind, name: &'static CStr, on: bool) {
        let context = self.context();
        let begin = probe::Begin {
            trace_hi: context.trace_hi,
            trace_lo: context.trace_lo,
            span: context.span,
            parent: context.parent,
            kind: kind as u8,
            on: match on {
                // A session without enter events could not detect that the thread enters another
                // span.
                true if thread_context::is_publishing() && !probe.has(BLKKIN_ENTER) => 2,
                on => u8::from(on),
            },
            padding: 0,
            sampled_per_million: self.sampled_per_million,
            name: name.as_ptr(),
            service: self.service.0,
        };
        // SAFETY: both strings end in a NUL and live for ever.
        unsafe { (probe.begin)(&begin) };
    }

    /// Calls the probe. Out of line, so that a disabled event is only a comparison.
    #[cold]
    fn emit(&self, emit: impl FnOnce(&probe::Table, u64)) {
        if let Some(probe) = probe::table() {
            emit(probe, self.context().span);
        }
    }

    /// Calls the probe if this span is recorded.
    #[inline]
    fn emit_if_recording(&self, emit: impl FnOnce(&probe::Table, u64)) {
        if self.is_recording() {
            self.emit(emit);
        }
    }
}

impl Debug for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Span");
        fields.field("context", &self.context()).field("recording", &self.is_recording()).finish()
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if self.is_recording() {
            // A guard of this span may have been forgotten.
            thread_context::leave(self.key());
            let status = *self.status.get_mut();
            self.emit(|probe, span| {
                // SAFETY: a function of the probe that takes numbers.
                unsafe { (probe.end)(span, status) }
            });
        }
    }
}

/// Name of a service in one word, where a `&CStr` takes two.
#[derive(Clone, Copy)]
pub(crate) struct Service(*const c_char);

impl Service {
    #[inline(always)]
    pub(crate) fn of(name: &'static CStr) -> Self {
        Self(name.as_ptr())
    }
}

// SAFETY: it points to a string that lives for ever and is never written.
unsafe impl Send for Service {}
// SAFETY: it points to a string that lives for ever and is never written.
unsafe impl Sync for Service {}

/// Guard of [`Span::enter`]: the span is current on this thread until the guard is dropped. It
/// stays on its thread.
#[derive(Debug)]
#[must_use = "the span is current only while the guard lives"]
pub struct Entered<'a> {
    span: &'a Span,
    /// Makes the guard neither `Send` nor `Sync`.
    on_this_thread: PhantomData<*const c_char>,
}

impl Entered<'_> {
    /// Publishes attributes of this thread's work, until the guard is dropped or other attributes
    /// are set.
    #[inline]
    pub fn set_thread_attributes(&self, attributes: &ThreadAttributes) {
        if thread_context::needs_publishing(self.span.sampled_per_million != UNRECORDED) {
            thread_context::set_attributes(self.span.key(), attributes);
        }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if thread_context::needs_publishing(self.span.sampled_per_million != UNRECORDED) {
            thread_context::leave(self.span.key());
        }
        self.span.emit_if_recording(|probe, span| probe.emit_switch(span, 0));
    }
}
