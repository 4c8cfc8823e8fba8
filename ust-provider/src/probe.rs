//! The border to the probe: the one shared object that knows LTTng, and what of it is looked at while it is not there.
//!
//! [`on`] is what every call asks first: two loads and a comparison, of a word that LTTng itself writes when a session
//! enables the event. Until [`publish`] that word is a zero of ours. So a process without the probe (no library, no
//! headers when it was built, `BLKKIN_UST=0`, musl) runs the same code and never gets past the comparison.
//!
//! Why not call sites in the program itself, as LTTng's own macros make them: they stand in a section that linkers drop
//! unless told otherwise, and bring constructors that run before `main`. Here the sections are the probe's, which is
//! linked by the C compiler as LTTng expects, and nothing runs before `init`.

use std::ffi::c_char;
use std::ptr::null;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering, fence};

use crate::publish;

/// Places in [`Table::state`].
#[cfg(blkkin_probe)]
const BLKKIN_BEGIN: usize = 0;
pub(crate) const BLKKIN_ENTER: usize = 2;
const BLKKIN_LEAVE: usize = 3;
pub(crate) const BLKKIN_TURN: usize = 12;
pub(crate) const BLKKIN_TOGETHER: usize = 13;
const BLKKIN_UNSEEN_ENTER: usize = 14;
const BLKKIN_UNSEEN_LEAVE: usize = 15;

/// `BLKKIN_EVENTS` of `c/probe/probe.h`: blkin's are behind ours.
const EVENTS: usize = 16;

/// `struct blkkin_probe` of `c/probe/probe.h`, up to what Rust uses.
#[repr(C)]
pub(crate) struct Table {
    pub(crate) abi: u32,
    pub(crate) size: u32,
    pub(crate) state: [*const AtomicI32; EVENTS],
    pub(crate) begin: unsafe extern "C" fn(&Begin),
    pub(crate) end: unsafe extern "C" fn(u64, i32),
    pub(crate) enter: unsafe extern "C" fn(u64),
    pub(crate) leave: unsafe extern "C" fn(u64),
    pub(crate) event: unsafe extern "C" fn(u64, *const c_char),
    pub(crate) text: unsafe extern "C" fn(u64, *const c_char, *const c_char),
    pub(crate) number: unsafe extern "C" fn(u64, *const c_char, i64),
    pub(crate) meeting: unsafe extern "C" fn(u64, u8, u8, *const c_char, *const c_char, u64),
    pub(crate) turn: unsafe extern "C" fn(u64, u64),
    pub(crate) together: unsafe extern "C" fn(*const u64, u16),
    pub(crate) unseen_enter: unsafe extern "C" fn(u64),
    pub(crate) unseen_leave: unsafe extern "C" fn(u64),
    /// Of how many in a million a root that begins now is one; 0: it is not kept.
    pub(crate) keep_root: unsafe extern "C" fn(u64) -> u32,
    pub(crate) set_rate: unsafe extern "C" fn(u32),
    pub(crate) seen_enabled: unsafe extern "C" fn() -> u64,
    pub(crate) first_enabled_ns: unsafe extern "C" fn() -> u64,
    pub(crate) follow_forks: unsafe extern "C" fn() -> i32,
}

/// `struct blkkin_begin` of `c/probe/probe.h`.
#[repr(C)]
pub(crate) struct Begin {
    pub(crate) trace_hi: u64,
    pub(crate) trace_lo: u64,
    pub(crate) span: u64,
    pub(crate) parent: u64,
    pub(crate) kind: u8,
    pub(crate) on: u8,
    pub(crate) padding: u16,
    pub(crate) kept_per_million: u32,
    pub(crate) name: *const c_char,
    pub(crate) service: *const c_char,
}

impl Table {
    /// Whether a session has this event enabled: one that was told of events by their names may not know it.
    #[inline]
    pub(crate) fn has(&self, event: usize) -> bool {
        // SAFETY: a word of the probe, which is never unloaded.
        unsafe { &*self.state[event] }.load(Ordering::Relaxed) != 0
    }

    /// Whether a session is told in any way what threads work for.
    pub(crate) fn hears_turns(&self) -> bool {
        let unseen =
            || !publish::publishes() && (self.has(BLKKIN_UNSEEN_ENTER) || self.has(BLKKIN_UNSEEN_LEAVE));
        [BLKKIN_TURN, BLKKIN_ENTER, BLKKIN_LEAVE].into_iter().any(|event| self.has(event)) || unseen()
    }

    /// This thread works for `left` no longer, and for `span` from now on; 0: for none. Each session hears it by the events that it has:
    /// in one word or two, or only where nobody could read it in the thread's own memory.
    pub(crate) fn turned(&self, left: u64, span: u64) {
        let say = |function: unsafe extern "C" fn(u64), whom: u64| {
            if whom != 0 {
                // SAFETY: a function of the probe that takes a number.
                unsafe { function(whom) };
            }
        };
        if left != 0 && span != 0 && self.has(BLKKIN_TURN) {
            // SAFETY: a function of the probe that takes numbers.
            unsafe { (self.turn)(left, span) };
        } else {
            say(self.leave, left);
            say(self.enter, span);
        }
        if !publish::publishes() {
            say(self.unseen_leave, left);
            say(self.unseen_enter, span);
        }
    }
}

/// What the state of an event is while there is no probe.
static OFF: AtomicI32 = AtomicI32::new(0);

/// The state of `begin`, which decides for the whole span.
static BEGIN: AtomicPtr<AtomicI32> = AtomicPtr::new((&raw const OFF).cast_mut());

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null::<Table>().cast_mut());

/// Whether a session has `begin` enabled.
#[inline(always)]
pub(crate) fn on() -> bool {
    // SAFETY: it points to OFF or to a word of the probe, which is never unloaded.
    let state = unsafe { &*BEGIN.load(Ordering::Relaxed) };
    state.load(Ordering::Relaxed) != 0
}

/// The probe; none while there is none.
#[inline]
pub(crate) fn table() -> Option<&'static Table> {
    // What was seen by `on` was written after the table.
    fence(Ordering::Acquire);
    // SAFETY: it is null or the probe's own table, which is constant and never unloaded.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// From now on the probe's states are asked and its functions called.
#[cfg(blkkin_probe)]
pub(crate) fn publish(table: &'static Table) {
    TABLE.store((&raw const *table).cast_mut(), Ordering::Release);
    BEGIN.store(table.state[BLKKIN_BEGIN].cast_mut(), Ordering::Release);
}

/// From now on all is off again: in a forked child, which has none of LTTng's threads.
#[cfg(blkkin_probe)]
pub(crate) fn withdraw() {
    BEGIN.store((&raw const OFF).cast_mut(), Ordering::Release);
    TABLE.store(null::<Table>().cast_mut(), Ordering::Release);
}
