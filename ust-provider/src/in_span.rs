//! Futures that work for a span: whichever thread polls one works for the span during that poll, and only then.
//!
//! A guard of [`Span::enter`] cannot live over an await: the thread goes on with other tasks while this one waits, and
//! another thread may take it up. It is not `Send`, so a runtime with several threads refuses such a task.

use std::borrow::Borrow;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::said::Said;
use crate::span::Span;

/// What every future can do.
pub trait InSpan: Future + Sized {
    /// Works for `span` in every poll of this future. `span` may be a [`Span`], which then ends when the future is ready
    /// or dropped, or a borrow or `Arc` of one that ends elsewhere.
    fn in_span<S: Borrow<Span> + Unpin>(self, span: S) -> Spanned<Self, S> {
        Spanned { future: self, span: Some(span), said: None }
    }
}

impl<F: Future> InSpan for F {}

/// A future that works for a span; see [`InSpan::in_span`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Spanned<F, S> {
    /// Dropped before the span: what it does last is not after the span's end.
    future: F,
    /// Gone once the future is ready.
    span: Option<S>,
    said: Option<Box<Said>>,
}

impl<F, S> Spanned<F, S> {
    /// What whichever thread polls this future says of the work besides, in each poll.
    pub fn saying(mut self, said: Said) -> Self {
        self.said = Some(Box::new(said));
        self
    }
}

impl<F: Future, S: Borrow<Span> + Unpin> Future for Spanned<F, S> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is pinned with us: it is never moved out, and this type has no Drop and no other way to
        // it. The span is not, and is Unpin.
        let (future, span, said) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.span, &this.said)
        };
        let entered = span.as_ref().map(|span| span.borrow().enter());
        if let (Some(entered), Some(said)) = (&entered, said) {
            entered.says(said);
        }
        let polled = future.poll(context);
        drop(entered);
        if polled.is_ready() {
            *span = None;
        }
        polled
    }
}
