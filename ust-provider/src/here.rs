//! A span that one thread works for from its begin to its end: two events instead of four.
//!
//! Its `begin` says that the thread works for it, and its `end` says that nobody does any more.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::context::Context;
use crate::probe;
use crate::span::{ALL, Kind, Span};

/// A span that this thread works for until it ends, which is when it is dropped. It stays on its thread.
///
/// Drop it before whatever was entered around it.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Here {
    span: Span,
    /// Neither `Send` nor `Sync`.
    on_this_thread: PhantomData<*const u8>,
}

impl Here {
    /// As [`Span::root`].
    #[inline]
    pub fn root(kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let mut here = Self::silent(Context::NONE, service);
        if probe::on() {
            here.span.begin(ALL, kind, name, true);
        }
        here
    }

    /// As [`Span::child`] of `parent`.
    #[inline]
    pub fn child(parent: &Span, kind: Kind, name: &'static CStr) -> Self {
        let mut here = Self::silent(parent.context(), parent.service());
        if probe::on() {
            here.span.begin(parent.kept_per_million(), kind, name, true);
        }
        here
    }

    /// As [`Span::continued`].
    #[inline]
    pub fn continued(context: Context, kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let mut here = Self::silent(context, service);
        if probe::on() {
            here.span.begin(ALL, kind, name, true);
        }
        here
    }

    #[inline(always)]
    fn silent(above: Context, service: &'static CStr) -> Self {
        Self { span: Span::silent(above, service), on_this_thread: PhantomData }
    }
}

impl Deref for Here {
    type Target = Span;

    #[inline]
    fn deref(&self) -> &Span {
        &self.span
    }
}
