//! Interface to the probe, the shared object that calls LTTng, and its state while it is not
//! loaded.
//!
//! *In*: calls of the other modules. *Out*: calls through the probe's [`Table`].
//!
//! Every call first checks [`is_enabled`]: two loads and a comparison of a word that LTTng itself
//! writes when a session enables the event. Until [`install`] that word is a zero of this module. A
//! process without the probe (no library, no headers at build time, `BLKKIN_UST=0`, musl) runs the
//! same code and stops at the comparison.
//!
//! *Rejected*: call sites in the program, as LTTng's own macros make them. They are in a section
//! that linkers drop by default, and add constructors that run before `main`. Here the sections are
//! in the probe, which the C compiler links as LTTng expects, and nothing runs before `init`.

use std::ffi::c_char;
use std::ptr::null;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering, fence};

#[cfg(blkkin_probe)]
use crate::load;
use crate::thread_context;

#[cfg(blkkin_probe)]
const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/blkkin-probe.so"));

/// `BLKKIN_PROBE_ABI` of `c/probe/probe.h`.
#[cfg(blkkin_probe)]
const ABI: u32 = 3;

/// Indices into [`Table::state`]. Each has the name of its LTTng event.
#[cfg(blkkin_probe)]
const BLKKIN_BEGIN: usize = 0;
pub(crate) const BLKKIN_ENTER: usize = 2;
const BLKKIN_LEAVE: usize = 3;
pub(crate) const BLKKIN_SWITCH_SPAN: usize = 12;
const BLKKIN_UNPUBLISHED_ENTER: usize = 13;
const BLKKIN_UNPUBLISHED_LEAVE: usize = 14;

/// `BLKKIN_EVENTS` of `c/probe/probe.h`, which includes the events of blkin.
const EVENTS: usize = 15;

/// `struct blkkin_probe` of `c/probe/probe.h`, up to the last field that Rust uses. Functions have
/// the names of their LTTng events.
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
    pub(crate) rpc_endpoint: unsafe extern "C" fn(u64, u8, u8, *const c_char, *const c_char, u64),
    pub(crate) switch_span: unsafe extern "C" fn(u64, u64),
    pub(crate) unpublished_enter: unsafe extern "C" fn(u64),
    pub(crate) unpublished_leave: unsafe extern "C" fn(u64),
    /// Sampling ratio of a root that begins now, per million, and the number of next roots to drop
    /// (upper half).
    pub(crate) keep_root: unsafe extern "C" fn(u64) -> u64,
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
    pub(crate) sampled_per_million: u32,
    pub(crate) name: *const c_char,
    pub(crate) service: *const c_char,
}

/// Loads the probe and returns its table.
#[cfg(blkkin_probe)]
pub(crate) fn load() -> Result<&'static Table, String> {
    let handle = load::object(c"blkkin-probe", PROBE)?;
    // SAFETY: the handle is of an object that is loaded, the name ends in a NUL.
    let table: *const Table = unsafe { libc::dlsym(handle, c"blkkin_probe".as_ptr()) }.cast();
    // SAFETY: it is null or the probe's constant table, which is never unloaded and begins with
    // `abi` and `size`.
    let table = unsafe { table.as_ref() }.ok_or_else(load::loader_error)?;
    match (table.abi, table.size as usize >= size_of::<Table>()) {
        (ABI, true) => Ok(table),
        (abi, _) => Err(format!("the probe has interface {abi} and not {ABI}")),
    }
}

impl Table {
    /// Returns whether a session has this event enabled. A session that enabled events by name may
    /// lack it.
    #[inline]
    pub(crate) fn has(&self, event: usize) -> bool {
        // SAFETY: a word of the probe, which is never unloaded.
        unsafe { &*self.state[event] }.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a session records changes of the current span by any event.
    pub(crate) fn records_switches(&self) -> bool {
        let unpublished = || {
            !thread_context::is_publishing()
                && (self.has(BLKKIN_UNPUBLISHED_ENTER) || self.has(BLKKIN_UNPUBLISHED_LEAVE))
        };
        [BLKKIN_SWITCH_SPAN, BLKKIN_ENTER, BLKKIN_LEAVE].into_iter().any(|event| self.has(event))
            || unpublished()
    }

    /// Emits that this thread left the span `left` and entered the span `entered`; 0 is no span.
    /// Each session receives it by the events that it has enabled: in one event or two, or only if
    /// the thread's memory does not publish it.
    pub(crate) fn emit_switch(&self, left: u64, entered: u64) {
        let emit = |function: unsafe extern "C" fn(u64), span: u64| {
            if span != 0 {
                // SAFETY: a function of the probe that takes a number.
                unsafe { function(span) };
            }
        };
        if left != 0 && entered != 0 && self.has(BLKKIN_SWITCH_SPAN) {
            // SAFETY: a function of the probe that takes numbers.
            unsafe { (self.switch_span)(left, entered) };
        } else {
            emit(self.leave, left);
            emit(self.enter, entered);
        }
        if !thread_context::is_publishing() {
            emit(self.unpublished_leave, left);
            emit(self.unpublished_enter, entered);
        }
    }
}

/// State of an event while the probe is not loaded.
static OFF: AtomicI32 = AtomicI32::new(0);

/// State of `begin`, which decides for the whole span.
static BEGIN: AtomicPtr<AtomicI32> = AtomicPtr::new((&raw const OFF).cast_mut());

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null::<Table>().cast_mut());

/// Returns whether a session has `begin` enabled.
#[inline(always)]
pub(crate) fn is_enabled() -> bool {
    // SAFETY: it points to OFF or to a word of the probe, which is never unloaded.
    let state = unsafe { &*BEGIN.load(Ordering::Relaxed) };
    state.load(Ordering::Relaxed) != 0
}

/// Returns the probe, if it is loaded.
#[inline]
pub(crate) fn table() -> Option<&'static Table> {
    // The state that `is_enabled` read was written after the table.
    fence(Ordering::Acquire);
    // SAFETY: it is null or the probe's own table, which is constant and never unloaded.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Installs the probe: its states are checked and its functions called from now on.
#[cfg(blkkin_probe)]
pub(crate) fn install(table: &'static Table) {
    TABLE.store((&raw const *table).cast_mut(), Ordering::Release);
    BEGIN.store(table.state[BLKKIN_BEGIN].cast_mut(), Ordering::Release);
}

/// Disables all events in a forked child, which has none of LTTng's threads.
#[cfg(blkkin_probe)]
pub(crate) fn uninstall() {
    BEGIN.store((&raw const OFF).cast_mut(), Ordering::Release);
    TABLE.store(null::<Table>().cast_mut(), Ordering::Release);
}
