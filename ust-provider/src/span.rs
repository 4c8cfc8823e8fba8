//! A span: from the call that makes it until it is dropped. In: what the daemon says; out: events of provider `blkkin`.
//!
//! Whether a span is recorded is decided once, where it begins: `begin` is enabled by some session, and the root was kept.
//! A span that is not recorded says nothing, and a child of it neither, with one exception: where tracing was off when
//! the parent began, a child that begins after it came on is a root. A connection's span that is older than the session
//! would otherwise hide every request on it.
//!
//! Which thread works for a span is a matter of its own ([`Span::enter`], [`Here`](crate::Here),
//! [`in_span`](crate::InSpan::in_span)): a span may begin on one thread, be worked for by others, and end on a last one. It is said
//! twice: as an event, and in the thread's own memory ([`crate::publish`]).

use std::ffi::{CStr, c_char};
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::context::Context;
use crate::probe::BLKKIN_ENTER;
use crate::said::Said;
use crate::{ids, probe, publish};

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

/// What `Span::kept_per_million` is of a span that is not recorded: without a context, and with one to carry on.
const NOTHING: u32 = 0;
const CARRIES: u32 = u32::MAX;

/// One operation of the daemon. It ends when it is dropped.
///
/// While nobody traces a root is made by two stores: of the rest nothing is written that is not read.
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    /// Of its root; NOTHING or CARRIES: this span is not recorded.
    kept_per_million: u32,
    /// What it failed with; 0: it did not.
    status: AtomicI32,
    /// What a child is said to be of.
    service: Service,
    /// Written unless `kept_per_million` is NOTHING.
    context: MaybeUninit<Context>,
}

impl Span {
    /// Begins a trace.
    #[inline]
    pub fn root(kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let service = Service::of(service);
        if probe::on() {
            return Self::silent(service).begun(ALL, kind, name, false);
        }
        Self::silent(service)
    }

    /// Begins a part of this span's work, of the same service.
    #[inline]
    pub fn child(&self, kind: Kind, name: &'static CStr) -> Self {
        if probe::on() {
            return self.silent_below().begun(self.kept_below(), kind, name, false);
        }
        self.silent_below()
    }

    /// Begins what somebody else asked for: a child of the span that `context` names, wherever it is. Without one
    /// ([`Context::NONE`]) it begins a trace. While nobody traces here it carries `context` on unchanged.
    #[inline]
    pub fn continued(context: Context, kind: Kind, name: &'static CStr, service: &'static CStr) -> Self {
        let service = Service::of(service);
        if probe::on() {
            return Self::carrying(context, service).begun(ALL, kind, name, false);
        }
        Self::carrying(context, service)
    }

    /// A span that is never recorded, for places that need one. A child of it is a root.
    pub fn none() -> Self {
        Self::silent(Service::of(c""))
    }

    /// What to send with a request, for the other end to continue. [`Context::NONE`] while nobody traces.
    #[inline]
    pub fn context(&self) -> Context {
        match self.kept_per_million {
            NOTHING => Context::NONE,
            // SAFETY: it is written unless NOTHING.
            _ => unsafe { self.context.assume_init() },
        }
    }

    /// Whether its events go to a trace: worth asking before a value is made only for [`text`](Self::text).
    #[inline(always)]
    pub fn is_recorded(&self) -> bool {
        (1..=ALL).contains(&self.kept_per_million)
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
    ///
    /// Who answers another machine says `event(c"answers")` just before it sends the answer: the asker may have that before this
    /// span's end is said, and two clocks would be compared by it.
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
        self.publish();
        self.mark(|probe, span| probe.turned(0, span));
        Entered { span: self, on_this_thread: PhantomData }
    }

    /// Tells who reads threads that this one works for it; under which key, if it matters.
    #[inline]
    pub(crate) fn publish(&self) -> Option<u64> {
        publish::matters(self.kept_per_million != NOTHING).then(|| {
            let key = self.key();
            publish::enter(key, &self.context());
            key
        })
    }

    /// Under which it is entered and left: what has no id has its address, which stays while it is entered.
    fn key(&self) -> u64 {
        match self.kept_per_million {
            NOTHING => (&raw const *self).addr() as u64,
            _ => self.context().span,
        }
    }

    /// Not recorded, yet, and below nothing.
    #[inline(always)]
    pub(crate) fn silent(service: Service) -> Self {
        Self { kept_per_million: NOTHING, status: AtomicI32::new(0), service, context: MaybeUninit::uninit() }
    }

    /// Not recorded, yet, below `above`.
    #[inline(always)]
    pub(crate) fn carrying(above: Context, service: Service) -> Self {
        Self {
            kept_per_million: CARRIES,
            status: AtomicI32::new(0),
            service,
            context: MaybeUninit::new(above),
        }
    }

    /// Not recorded, yet, below this one.
    #[inline(always)]
    pub(crate) fn silent_below(&self) -> Self {
        match self.kept_per_million {
            NOTHING => Self::silent(self.service),
            _ => Self::carrying(self.context(), self.service),
        }
    }

    /// Of what a child's root is one, in a million; 0: a child of this is not recorded, or a root.
    #[inline(always)]
    pub(crate) fn kept_below(&self) -> u32 {
        if self.is_recorded() { self.kept_per_million } else { 0 }
    }

    /// Begins a span that is silent until now and has the context that it is to stand below: as its child, or as a root
    /// where that is none.
    ///
    /// Who asks returns what this gives, and else a span made anew: one that is written in two places is copied from place
    /// to place, also while nobody traces, and that took 7 ns.
    #[cold]
    #[inline(never)]
    pub(crate) fn begun(mut self, kept: u32, kind: Kind, name: &'static CStr, on: bool) -> Self {
        self.begin(kept, kind, name, on);
        self
    }

    /// A root that sampling does not keep has its ids alone, so that nobody further on takes its parts for roots.
    fn begin(&mut self, kept: u32, kind: Kind, name: &'static CStr, on: bool) {
        let Some(probe) = probe::table() else { return };
        if self.made(probe, kept) {
            self.say_begin(probe, kind, name, on);
        }
    }

    /// Gives it its ids. Whether it is recorded.
    pub(crate) fn made(&mut self, probe: &probe::Table, kept: u32) -> bool {
        let above = self.context();
        let (context, kept) = if above.is_none() {
            // SAFETY: a function of the probe that takes a number.
            let kept = unsafe { (probe.keep_root)(ids::fresh()) };
            // A trace has its root's id, as in Zipkin's own: one id less to draw, and to say.
            let span = ids::fresh();
            (Context { trace_lo: span, span, sampled: kept != 0, ..Context::NONE }, kept)
        } else if above.sampled && kept != 0 {
            (Context { span: ids::fresh(), parent: above.span, ..above }, kept)
        } else {
            return false;
        };
        self.context = MaybeUninit::new(context);
        self.kept_per_million = if kept == 0 { CARRIES } else { kept };
        kept != 0
    }

    pub(crate) fn say_begin(&self, probe: &probe::Table, kind: Kind, name: &'static CStr, on: bool) {
        let context = self.context();
        let begin = probe::Begin {
            trace_hi: context.trace_hi,
            trace_lo: context.trace_lo,
            span: context.span,
            parent: context.parent,
            kind: kind as u8,
            on: match on {
                // Who hears of no enters could not tell when it works for something else.
                true if publish::publishes() && !probe.has(BLKKIN_ENTER) => 2,
                on => u8::from(on),
            },
            padding: 0,
            kept_per_million: self.kept_per_million,
            name: name.as_ptr(),
            service: self.service.0,
        };
        // SAFETY: both strings end in a NUL and live for ever.
        unsafe { (probe.begin)(&begin) };
    }

    /// In one word, for who says it in another form.
    pub(crate) fn service(&self) -> *const c_char {
        self.service.0
    }

    /// What it failed with; 0: it did not.
    pub(crate) fn status(&self) -> i32 {
        self.status.load(Ordering::Relaxed)
    }

    /// Its end was said: it only carries its context on.
    pub(crate) fn silence(&mut self) {
        self.kept_per_million = CARRIES;
    }

    /// Out of line: what is off is then a comparison and no more.
    #[cold]
    fn told(&self, say: impl FnOnce(&probe::Table, u64)) {
        if let Some(probe) = probe::table() {
            say(probe, self.context().span);
        }
    }

    /// Says that this thread works for it from now on, or no longer.
    #[inline]
    fn mark(&self, say: impl FnOnce(&probe::Table, u64)) {
        if self.is_recorded() {
            self.told(say);
        }
    }
}

impl Debug for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_struct("Span");
        parts.field("context", &self.context()).field("recorded", &self.is_recorded()).finish()
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if self.is_recorded() {
            // Whoever still works for it, by a guard that was forgotten, does so no longer.
            publish::leave(self.key());
            let status = *self.status.get_mut();
            self.told(|probe, span| {
                // SAFETY: a function of the probe that takes numbers.
                unsafe { (probe.end)(span, status) }
            });
        }
    }
}

/// The name of a service, in one word where a `&CStr` is two.
#[derive(Clone, Copy)]
pub(crate) struct Service(*const c_char);

impl Service {
    #[inline(always)]
    pub(crate) fn of(name: &'static CStr) -> Self {
        Self(name.as_ptr())
    }
}

// SAFETY: it points to a string that lives for ever and that nobody writes to.
unsafe impl Send for Service {}
// SAFETY: as above.
unsafe impl Sync for Service {}

/// This thread works for a span until this is dropped. It stays on its thread.
#[derive(Debug)]
#[must_use = "the thread works for the span only while this lives"]
pub struct Entered<'a> {
    span: &'a Span,
    /// Neither `Send` nor `Sync`.
    on_this_thread: PhantomData<*const c_char>,
}

impl Entered<'_> {
    /// What this thread says of the work besides, until the guard is dropped or it says something else: see [`Said`].
    #[inline]
    pub fn says(&self, said: &Said) {
        if publish::matters(self.span.kept_per_million != NOTHING) {
            publish::say(self.span.key(), said);
        }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if publish::matters(self.span.kept_per_million != NOTHING) {
            publish::leave(self.span.key());
        }
        self.span.mark(|probe, span| probe.turned(span, 0));
    }
}
