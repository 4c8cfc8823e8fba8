//! A span that one thread works for from its begin to its end: two events instead of four.
//!
//! Its `begin` says that the thread works for it, and its `end` says that nobody does any more.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::context::Context;
use crate::said::Said;
use crate::span::{ALL, Kind, Service, Span};
use crate::{ids, probe, publish};

/// A span that this thread works for until it ends, which is when it is dropped. It stays on its thread.
///
/// Drop it before whatever was entered around it.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Here {
    span: Span,
    /// Under which it was entered for who reads threads; 0: it was not.
    key: u64,
    /// Neither `Send` nor `Sync`.
    on_this_thread: PhantomData<*const u8>,
}

impl Here {
    /// As [`Span::root`].
    #[inline]
    pub fn root(kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let service = Service::of(service);
        if probe::on() {
            return Self::begun(Span::silent(service), ALL, kind, name);
        }
        // Before the span is made: one that waits for this is copied to its place, which took 5 ns.
        let key = hidden();
        Self { span: Span::silent(service), key, on_this_thread: PhantomData }
    }

    /// As [`Span::child`] of `parent`.
    #[inline]
    pub fn child(parent: &Span, kind: Kind, name: &'static CStr) -> Self {
        if probe::on() {
            return Self::begun(parent.silent_below(), parent.kept_below(), kind, name);
        }
        let key = entered(parent.context());
        Self { span: parent.silent_below(), key, on_this_thread: PhantomData }
    }

    /// As [`Span::continued`].
    #[inline]
    pub fn continued(context: Context, kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let service = Service::of(service);
        if probe::on() {
            return Self::begun(Span::carrying(context, service), ALL, kind, name);
        }
        let key = entered(context);
        Self { span: Span::carrying(context, service), key, on_this_thread: PhantomData }
    }

    /// What this thread says of the work besides, until it ends or it says something else: see [`Said`].
    #[inline]
    pub fn says(&self, said: &Said) {
        if self.key != 0 {
            publish::say(self.key, said);
        }
    }

    #[cold]
    #[inline(never)]
    fn begun(silent: Span, kept: u32, kind: Kind, name: &'static CStr) -> Self {
        let mut here =
            Self { span: silent.begun(kept, kind, name, true), key: 0, on_this_thread: PhantomData };
        here.key = entered(here.span.context());
        here
    }
}

/// What a span without a context is entered under: only where it could hide another.
#[inline(always)]
fn hidden() -> u64 {
    if publish::matters(false) { published(Context::NONE) } else { 0 }
}

#[inline(always)]
fn entered(context: Context) -> u64 {
    if publish::matters(!context.is_none()) { published(context) } else { 0 }
}

#[inline(never)]
fn published(context: Context) -> u64 {
    // It may move until it ends, so its address is no name for it.
    let key = if context.is_none() { ids::fresh() } else { context.span };
    publish::enter(key, &context);
    key
}

impl Drop for Here {
    #[inline]
    fn drop(&mut self) {
        if self.key != 0 {
            publish::leave(self.key);
        }
    }
}

impl Deref for Here {
    type Target = Span;

    #[inline]
    fn deref(&self) -> &Span {
        &self.span
    }
}
