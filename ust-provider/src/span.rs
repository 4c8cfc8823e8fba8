//! A span: from the call that makes it until it is dropped. In: what the daemon says; out: events of provider `blkkin`.
//!
//! Whether a span is recorded is decided once, where it begins: `begin` is enabled by some session, and the root was kept.
//! A span that is not recorded says nothing, and a child of it neither, with one exception: where tracing was off when
//! the parent began, a child that begins after it came on is a root. A connection's span that is older than the session
//! would otherwise hide every request on it.
//!
//! Which thread works for a span is a matter of its own ([`Span::enter`], [`Here`](crate::Here),
//! [`in_span`](crate::InSpan::in_span)): a span may begin on one thread, be worked for by others, and end on a last one.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::context::Context;
use crate::{ids, probe};

/// What a span is towards others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A part of the daemon's own work.
    Internal = 0,
    /// It answers somebody's request.
    Server = 1,
    /// It asks somebody.
    Client = 2,
}

/// Which end of a request that crosses a connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Side {
    /// This span asked.
    Asked = 0,
    /// This span answered.
    Answered = 1,
}

/// All roots are kept.
pub(crate) const ALL: u32 = 1_000_000;

/// One operation of the daemon. It ends when it is dropped.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    context: Context,
    service: &'static CStr,
    /// Of the root; 0: this span is not recorded.
    kept_per_million: u32,
    /// What it failed with; 0: it did not.
    status: AtomicI32,
}

impl Span {
    /// Begins a trace.
    #[inline]
    pub fn root(kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let mut span = Self::silent(Context::NONE, service);
        if probe::on() {
            span.begin(ALL, kind, name, false);
        }
        span
    }

    /// Begins a part of this span's work, of the same service.
    #[inline]
    pub fn child(&self, kind: Kind, name: &'static CStr) -> Self {
        let mut span = Self::silent(self.context, self.service);
        if probe::on() {
            span.begin(self.kept_per_million, kind, name, false);
        }
        span
    }

    /// Begins what somebody else asked for: a child of the span that `context` names, wherever it is. Without one
    /// ([`Context::NONE`]) it begins a trace. While nobody traces here it carries `context` on unchanged.
    #[inline]
    pub fn continued(context: Context, kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let mut span = Self::silent(context, service);
        if probe::on() {
            span.begin(ALL, kind, name, false);
        }
        span
    }

    /// A span that is never recorded, for places that need one.
    pub const fn none() -> Self {
        Self::silent(Context::NONE, c"")
    }

    /// What to send with a request, for the other end to continue. [`Context::NONE`] while nobody traces.
    #[inline]
    pub fn context(&self) -> Context {
        self.context
    }

    /// Whether its events go to a trace: worth asking before a value is made only for [`text`](Self::text).
    #[inline(always)]
    pub fn is_recorded(&self) -> bool {
        self.kept_per_million != 0
    }

    /// Says something about this span: `key` is `val`.
    #[inline]
    pub fn text(&self, key: &CStr, val: &CStr) {
        if self.is_recorded() {
            self.told(|probe, span| {
                // SAFETY: both strings end in a NUL and live during the call.
                unsafe { (probe.text)(span, key.as_ptr(), val.as_ptr()) }
            });
        }
    }

    /// Says a number about this span.
    #[inline]
    pub fn number(&self, key: &CStr, val: i64) {
        if self.is_recorded() {
            self.told(|probe, span| {
                // SAFETY: the key ends in a NUL and lives during the call.
                unsafe { (probe.number)(span, key.as_ptr(), val) }
            });
        }
    }

    /// A moment in this span.
    #[inline]
    pub fn event(&self, name: &CStr) {
        if self.is_recorded() {
            self.told(|probe, span| {
                // SAFETY: the name ends in a NUL and lives during the call.
                unsafe { (probe.event)(span, name.as_ptr()) }
            });
        }
    }

    /// This span is one end of a request that crossed `connection` under the protocol's own name `cookie`. Both ends that
    /// say the same rule, connection and cookie are joined. `connection` names both ends, the asker's first; `unique`:
    /// the cookie comes only once on this connection.
    #[inline]
    pub fn meeting(&self, side: Side, rule: &CStr, connection: &CStr, cookie: u64, unique: bool) {
        if self.is_recorded() {
            self.told(|probe, span| {
                let (rule, connection) = (rule.as_ptr(), connection.as_ptr());
                // SAFETY: both strings end in a NUL and live during the call.
                unsafe { (probe.meeting)(span, side as u8, u8::from(unique), rule, connection, cookie) }
            });
        }
    }

    /// It failed with this positive errno; the last one counts.
    #[inline]
    pub fn fail(&self, errno: i32) {
        self.status.store(errno, Ordering::Relaxed);
    }

    /// This thread works for the span until the guard is dropped. Guards nest: the innermost span is the one worked for.
    #[inline]
    pub fn enter(&self) -> Entered<'_> {
        self.mark(|probe| probe.enter);
        Entered { span: self, on_this_thread: PhantomData }
    }

    /// Not recorded, yet: with the context that it stands below.
    #[inline(always)]
    pub(crate) const fn silent(above: Context, service: &'static CStr) -> Self {
        Self { context: above, service, kept_per_million: 0, status: AtomicI32::new(0) }
    }

    #[inline(always)]
    pub(crate) fn service(&self) -> &'static CStr {
        self.service
    }

    /// Of the root that this stands below, so many in a million are kept; 0: it is not recorded.
    #[inline(always)]
    pub(crate) fn kept_per_million(&self) -> u32 {
        self.kept_per_million
    }

    /// Begins a span that is silent until now and has the context that it is to stand below: as its child, or as a root where
    /// that is none. It is changed where it lies: a span that is made here and returned would be copied also while nobody traces.
    ///
    /// A root that sampling does not keep has its ids alone, so that nobody further on takes its parts for roots.
    #[cold]
    pub(crate) fn begin(&mut self, kept: u32, kind: Kind, name: &'static CStr, on: bool) {
        let Some(probe) = probe::table() else { return };
        let above = self.context;
        let kept = if above.is_none() {
            self.context = Context { trace_lo: ids::fresh(), span: ids::fresh(), ..Context::NONE };
            // SAFETY: a function of the probe that takes a number.
            let kept = unsafe { (probe.keep_root)(ids::fresh()) };
            self.context.sampled = kept != 0;
            kept
        } else if above.sampled && kept != 0 {
            self.context = Context { span: ids::fresh(), parent: above.span, ..above };
            kept
        } else {
            0
        };
        if kept == 0 {
            return;
        }
        self.kept_per_million = kept;
        let begin = probe::Begin {
            trace_hi: self.context.trace_hi,
            trace_lo: self.context.trace_lo,
            span: self.context.span,
            parent: self.context.parent,
            kind: kind as u8,
            on: u8::from(on),
            padding: 0,
            kept_per_million: kept,
            name: name.as_ptr(),
            service: self.service.as_ptr(),
        };
        // SAFETY: both strings end in a NUL and live for ever.
        unsafe { (probe.begin)(&begin) };
    }

    /// Out of line: what is off is then a comparison and no more.
    #[cold]
    fn told(&self, say: impl FnOnce(&probe::Table, u64)) {
        if let Some(probe) = probe::table() {
            say(probe, self.context.span);
        }
    }

    /// Says that this thread works for it from now on, or no longer.
    #[inline]
    pub(crate) fn mark(&self, which: impl FnOnce(&probe::Table) -> unsafe extern "C" fn(u64)) {
        if self.is_recorded() {
            self.told(|probe, span| {
                // SAFETY: a function of the probe that takes a number.
                unsafe { which(probe)(span) }
            });
        }
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if self.is_recorded() {
            let status = *self.status.get_mut();
            self.told(|probe, span| {
                // SAFETY: a function of the probe that takes numbers.
                unsafe { (probe.end)(span, status) }
            });
        }
    }
}

/// This thread works for a span until this is dropped. It stays on its thread.
#[derive(Debug)]
#[must_use = "the thread works for the span only while this lives"]
pub struct Entered<'a> {
    span: &'a Span,
    /// Neither `Send` nor `Sync`.
    on_this_thread: PhantomData<*const c_char>,
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.span.mark(|probe| probe.leave);
    }
}
