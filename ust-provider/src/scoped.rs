//! Spans for which one thread works from begin to end: two events instead of four.
//!
//! The `begin` event states that the thread works for the span, and the `end` event that no thread
//! does any more.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::span::{ALL, Service, Span, SpanKind};
use crate::span_context::SpanContext;
use crate::thread_attributes::ThreadAttributes;
use crate::{ids, probe, thread_context};

/// A span that is current on this thread until it is dropped, which ends it. It stays on its
/// thread.
///
/// Drop it before any span that was entered around it.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct ScopedSpan {
    span: Span,
    /// Key of the published thread context; 0 if none was published.
    key: u64,
    /// Makes the span neither `Send` nor `Sync`.
    on_this_thread: PhantomData<*const u8>,
}

impl ScopedSpan {
    /// Begins a root span, as [`Span::root`].
    #[inline]
    pub fn root(kind: SpanKind, name: &'static CStr, service: &'static CStr) -> Self {
        let service = Service::of(service);
        if probe::is_enabled() {
            return Self::begun(Span::unrecorded(service), ALL, kind, name);
        }
        // Computed before the span is made: otherwise the span is copied to its place, which took 5
        // ns.
        let key = publish_without_context();
        Self { span: Span::unrecorded(service), key, on_this_thread: PhantomData }
    }

    /// Begins a child of `parent`, as [`Span::child`].
    #[inline]
    pub fn child(parent: &Span, kind: SpanKind, name: &'static CStr) -> Self {
        if probe::is_enabled() {
            return Self::begun(parent.unrecorded_child(), parent.child_sampled_per_million(), kind, name);
        }
        let key = publish(parent.context());
        Self { span: parent.unrecorded_child(), key, on_this_thread: PhantomData }
    }

    /// Begins a child of a remote span, as [`Span::continued`].
    #[inline]
    pub fn continued(
        context: SpanContext,
        kind: SpanKind,
        name: &'static CStr,
        service: &'static CStr,
    ) -> Self {
        let service = Service::of(service);
        if probe::is_enabled() {
            return Self::begun(Span::propagating(context, service), ALL, kind, name);
        }
        let key = publish(context);
        Self { span: Span::propagating(context, service), key, on_this_thread: PhantomData }
    }

    /// Publishes attributes of this thread's work, until the span ends or other attributes are set.
    #[inline]
    pub fn set_thread_attributes(&self, attributes: &ThreadAttributes) {
        if self.key != 0 {
            thread_context::set_attributes(self.key, attributes);
        }
    }

    #[cold]
    #[inline(never)]
    fn begun(unrecorded: Span, kept: u32, kind: SpanKind, name: &'static CStr) -> Self {
        let mut scoped =
            Self { span: unrecorded.begun(kept, kind, name, true), key: 0, on_this_thread: PhantomData };
        scoped.key = publish(scoped.span.context());
        scoped
    }
}

/// Publishes a span without a context if it could hide another one. Returns its key, or 0.
#[inline(always)]
fn publish_without_context() -> u64 {
    if thread_context::needs_publishing(false) { enter(SpanContext::NONE) } else { 0 }
}

/// Publishes the context if necessary. Returns its key, or 0.
#[inline(always)]
fn publish(context: SpanContext) -> u64 {
    if thread_context::needs_publishing(!context.is_none()) { enter(context) } else { 0 }
}

#[inline(never)]
fn enter(context: SpanContext) -> u64 {
    // The span may move until it ends, so its address cannot be the key.
    let key = if context.is_none() { ids::next_id() } else { context.span };
    thread_context::enter(key, &context);
    key
}

impl Drop for ScopedSpan {
    #[inline]
    fn drop(&mut self) {
        if self.key != 0 {
            thread_context::leave(self.key);
        }
    }
}

impl Deref for ScopedSpan {
    type Target = Span;

    #[inline]
    fn deref(&self) -> &Span {
        &self.span
    }
}
