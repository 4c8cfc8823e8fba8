//! Futures with a span: the span is current on the polling thread during each poll.
//!
//! *Rejected*: a guard of [`Span::enter`] that lives over an await. The thread runs other tasks
//! while this one waits, and another thread may resume it. The guard is not `Send`, so a runtime
//! with several threads refuses such a task.

use std::borrow::Borrow;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::span::Span;
use crate::thread_attributes::ThreadAttributes;

/// Extension of every future, as in the `tracing` crate.
pub trait Instrument: Future + Sized {
    /// Enters `span` in every poll of this future. An owned [`Span`] ends when the future is ready
    /// or dropped. A borrow or `Arc` of one ends elsewhere.
    fn instrument<S: Borrow<Span> + Unpin>(self, span: S) -> Instrumented<Self, S> {
        Instrumented { future: self, span: Some(span), attributes: None }
    }
}

impl<F: Future> Instrument for F {}

/// A future with a span, made by [`Instrument::instrument`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Instrumented<F, S> {
    /// Dropped before the span, so that its last work precedes the end of the span.
    future: F,
    /// Dropped once the future is ready.
    span: Option<S>,
    attributes: Option<Box<ThreadAttributes>>,
}

impl<F, S> Instrumented<F, S> {
    /// Publishes attributes of the thread's work during each poll.
    pub fn with_thread_attributes(mut self, attributes: ThreadAttributes) -> Self {
        self.attributes = Some(Box::new(attributes));
        self
    }
}

impl<F: Future, S: Borrow<Span> + Unpin> Future for Instrumented<F, S> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is structurally pinned: it is never moved out, and this type has no
        // Drop and no other access to it. The span is Unpin.
        let (future, span, attributes) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.span, &this.attributes)
        };
        let entered = span.as_ref().map(|span| span.borrow().enter());
        if let (Some(entered), Some(attributes)) = (&entered, attributes) {
            entered.set_thread_attributes(attributes);
        }
        let polled = future.poll(context);
        drop(entered);
        if polled.is_ready() {
            *span = None;
        }
        polled
    }
}
