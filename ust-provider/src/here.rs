//! A span that one thread works for from its begin to its end: two events instead of four.
//!
//! Its `begin` says that the thread works for it, and its `end` says that nobody does any more.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::context::Context;
use crate::probe;
use crate::span::{ALL, Kind, Service, Span};

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
        let service = Service::of(service);
        if probe::on() {
            return Self::begun(Span::silent(service), ALL, kind, name);
        }
        Self { span: Span::silent(service), on_this_thread: PhantomData }
    }

    /// As [`Span::child`] of `parent`.
    #[inline]
    pub fn child(parent: &Span, kind: Kind, name: &'static CStr) -> Self {
        if probe::on() {
            return Self::begun(parent.silent_below(), parent.kept_below(), kind, name);
        }
        Self { span: parent.silent_below(), on_this_thread: PhantomData }
    }

    /// As [`Span::continued`].
    #[inline]
    pub fn continued(context: Context, kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let service = Service::of(service);
        if probe::on() {
            return Self::begun(Span::carrying(context, service), ALL, kind, name);
        }
        Self { span: Span::carrying(context, service), on_this_thread: PhantomData }
    }

    #[cold]
    #[inline(never)]
    fn begun(silent: Span, kept: u32, kind: Kind, name: &'static CStr) -> Self {
        Self { span: silent.begun(kept, kind, name, true), on_this_thread: PhantomData }
    }
}

impl Deref for Here {
    type Target = Span;

    #[inline]
    fn deref(&self) -> &Span {
        &self.span
    }
}
