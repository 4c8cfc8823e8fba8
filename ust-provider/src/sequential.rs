//! Spans that one thread works for in sequence, without a system call in between: one event per
//! span instead of two.
//!
//! Entering and leaving each span emits `leave A` and `enter B` although the thread did nothing in
//! between. Here a single event, `blkkin:switch_span`, replaces both. Before work for none of the spans,
//! such as sending all replies, the thread must call [`exit`](SequentialSpans::exit). Otherwise
//! that work would be attributed to the last span.

use std::ffi::c_char;
use std::marker::PhantomData;

use crate::span::Span;
use crate::{probe, thread_context};

/// The current span of this thread, one after another, until this is dropped. It stays on its
/// thread.
///
/// Unlike [`Entered`](crate::Entered) it borrows nothing: a span may move to another thread before
/// the next one is entered.
///
/// ```
/// # use blkkin_ust::{SequentialSpans, Span, SpanKind};
/// # let request = || Span::root(SpanKind::Server, c"READ", c"nbd-server");
/// # let requests = [request(), request()];
/// let mut current = SequentialSpans::new();
/// for span in &requests {
///     current.enter(span);
///     // A pread() here becomes a child of the span.
/// }
/// current.exit();
/// // A sendmsg() here belongs to no span.
/// ```
#[derive(Debug, Default)]
#[must_use = "a span is current only while this lives"]
pub struct SequentialSpans {
    /// Key of the published thread context, if any.
    key: Option<u64>,
    /// Id of the current span if it is recorded, or 0.
    span: u64,
    /// Set if a session records changes of the current span. Checked at the first span of a
    /// sequence, so a session that starts in the middle records the next sequence.
    emits: bool,
    /// Makes this neither `Send` nor `Sync`.
    on_this_thread: PhantomData<*const c_char>,
}

impl SequentialSpans {
    /// Creates a sequence without a current span.
    #[inline]
    pub const fn new() -> Self {
        Self { key: None, span: 0, emits: false, on_this_thread: PhantomData }
    }

    /// Makes `span` the current span, in place of the previous one.
    #[inline]
    pub fn enter(&mut self, span: &Span) {
        self.unpublish();
        self.key = span.publish();
        let next = if span.is_recording() { span.context().span } else { 0 };
        let previous = std::mem::replace(&mut self.span, next);
        if previous != next {
            if previous == 0 {
                self.emits = is_recorded();
            }
            self.emit(previous, next);
        }
    }

    /// Leaves the current span.
    #[inline]
    pub fn exit(&mut self) {
        self.unpublish();
        let previous = std::mem::take(&mut self.span);
        if previous != 0 {
            self.emit(previous, 0);
        }
    }

    #[inline]
    fn emit(&self, previous: u64, next: u64) {
        if self.emits {
            emit(previous, next);
        }
    }

    #[inline]
    fn unpublish(&mut self) {
        if let Some(key) = self.key.take() {
            thread_context::leave(key);
        }
    }
}

impl Drop for SequentialSpans {
    #[inline]
    fn drop(&mut self) {
        self.exit();
    }
}

#[cold]
fn is_recorded() -> bool {
    probe::table().is_some_and(probe::Table::records_switches)
}

/// Emits a change of the current span. 0 is no span.
#[cold]
fn emit(previous: u64, next: u64) {
    if let Some(probe) = probe::table() {
        probe.emit_switch(previous, next);
    }
}
