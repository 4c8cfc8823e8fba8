//! What a thread works for, where the kernel's side and profilers read it: OpenTelemetry's *thread context* (OTEP 4947).
//!
//! *In*: what this crate's users enter and leave, and what they say of it ([`Said`]). *Out*: the thread's slot points at a record with trace,
//! span, flags and that, or at nothing. Whoever reads it from outside does so while the thread is in a system call or interrupted, so it is exact at that
//! moment, and needs neither LTTng nor a word from us.
//!
//! *Invariant*: the slot names the innermost span that this thread has entered and not left, or nothing; never one that it has
//! left. So what has no context (nobody traced when it began) hides what is around it, and so does what is entered deeper than
//! [`DEPTH_MAX`]. Guards that are dropped out of order leave what lies above them too, as `ust-bridge` takes the events.
//!
//! *What is said* is of the span that it was said in: one that is entered inside says nothing, until something is said of it. What is around it
//! may be somebody else's request.
//!
//! *Order of writes* (OTEP 4947, *Publication Protocol*): each depth has a record of its own. It is marked invalid, filled, marked valid,
//! and then pointed at; what is said later is written in its place, by the same mark; so nobody sees a half, also if a signal's handler does the same in between. Only the compiler has to keep
//! this order: a reader is on the same CPU, as a signal handler is.
//!
//! *What is published without LTTng*: contexts that came from elsewhere ([`Span::continued`](crate::Span::continued)) and what is
//! carried below them. A root that begins while nobody traces is not: it has no ids, which is what makes it cost 0.4 ns, and
//! nobody could ever show the span.
//!
//! *The slot* is a shared object of 13 KiB, embedded and loaded by `init()`, as the probe is. *Rejected*: a symbol in the program itself.
//! An executable exports none unless its linker is told to, which a dependency cannot do for `cc`, and for rustc only by tricks that
//! differ from linker to linker; and it would be there also when publishing is switched off, beside that of a tracing library of
//! OpenTelemetry's in the same process. Price: what a thread calls for before `init()`, and some ms after it, is seen below nothing.
//! A static executable loads nothing, so there the slot is in the program, and it is published if that exports it ([`exported`]).

#[cfg(any(test, blkkin_slot_static))]
mod exported;

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::{self, Display, Formatter};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::context::Context;
use crate::said::{BYTES_MAX, Said};

/// Spans that a thread has entered and not left; what is entered deeper hides them.
const DEPTH_MAX: usize = 16;

/// Nothing is published; nothing was yet; something was.
const OFF: u8 = 0;
const IDLE: u8 = 1;
const USED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(OFF);

/// `blkkin_thread_slot` of `c/slot/slot.c`, once there is one.
static SLOT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

type SlotOf = unsafe extern "C" fn() -> *const AtomicPtr<Record>;

/// Why nothing is published.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotPublished {
    /// [`init`](crate::init) was not called.
    NotYet,
    /// `BLKKIN_UST_CONTEXT=0` is in the environment, or [`Options`](crate::Options) say so.
    SwitchedOff,
    /// The crate was built without the slot.
    NotBuilt(&'static str),
    /// Another library of this process does it.
    Taken,
    /// The executable is static, and its linker was not told to export the slot.
    NotExported,
    /// The slot cannot be loaded.
    NotLoaded(String),
}

impl Display for NotPublished {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet => f.write_str("not initialized"),
            Self::SwitchedOff => f.write_str("switched off by BLKKIN_UST_CONTEXT=0 or by an option"),
            Self::NotBuilt(why) => write!(f, "built without it: {why}"),
            Self::Taken => f.write_str("another library of this process publishes otel_thread_ctx_v1"),
            Self::NotExported => f.write_str(
                "this static executable does not export otel_thread_ctx_v1: link it with \
                 -Wl,--export-dynamic-symbol=otel_thread_ctx_v1",
            ),
            Self::NotLoaded(why) => write!(f, "cannot load the slot: {why}"),
        }
    }
}

impl std::error::Error for NotPublished {}

/// A record, byte for byte.
#[repr(C)]
struct Record {
    /// Two big-endian halves.
    trace: [AtomicU64; 2],
    /// Big-endian.
    span: AtomicU64,
    valid: AtomicU8,
    flags: AtomicU8,
    attributes_bytes: AtomicU16,
    /// As they lie in memory; by words, for they are written at each change of hands.
    attributes: [AtomicU32; BYTES_MAX / 4],
}

const _: () = assert!(size_of::<Record>() == 256 && std::mem::offset_of!(Record, attributes) == 28);

/// What was entered.
struct Entry {
    record: Record,
    /// By which it is left.
    key: Cell<u64>,
    /// What the slot pointed at before.
    before: Cell<*const Record>,
}

struct Stack {
    /// The thread's slot; null until it is asked for.
    slot: Cell<*const AtomicPtr<Record>>,
    /// How much was entered, of which the first [`DEPTH_MAX`] are kept, and of the next what was before it.
    depth: Cell<usize>,
    entries: [Entry; DEPTH_MAX + 1],
}

thread_local! {
    static STACK: Stack = const { Stack::new() };
}

/// Whether somebody must be told of a span that is entered: `has` a context, or may hide one that was.
#[inline(always)]
pub(crate) fn matters(has: bool) -> bool {
    match STATE.load(Ordering::Relaxed) {
        OFF => false,
        IDLE => has,
        _ => true,
    }
}

/// Whether who looks at this process' threads knows what they work for.
#[inline]
pub(crate) fn publishes() -> bool {
    STATE.load(Ordering::Relaxed) != OFF
}

/// This thread works for `context` from now on; for nothing that is known, where that is none.
pub(crate) fn enter(key: u64, context: &Context) {
    if STATE.load(Ordering::Relaxed) != USED {
        if context.is_none() {
            return;
        }
        STATE.store(USED, Ordering::Relaxed);
    }
    STACK.with(|stack| stack.push(key, context));
}

/// This thread works no longer for what it entered last under this key, nor for what it entered since. Nothing, if there is none.
pub(crate) fn leave(key: u64) {
    STACK.with(|stack| stack.pop(key));
}

/// This thread says so of what it has entered under this key, and nothing that it said of it before. Nothing, where that is not published.
pub(crate) fn say(key: u64, said: &Said) {
    STACK.with(|stack| stack.say(key, said));
}

/// Publishes from now on, if there is a slot.
pub(crate) fn begin(wanted: bool) -> Result<(), NotPublished> {
    if !wanted || std::env::var_os("BLKKIN_UST_CONTEXT").is_some_and(|value| value == "0") {
        return Err(NotPublished::SwitchedOff);
    }
    SLOT.store(slot()?, Ordering::Release);
    STATE.store(IDLE, Ordering::Release);
    Ok(())
}

#[cfg(not(any(blkkin_slot, blkkin_slot_static)))]
fn slot() -> Result<*mut c_void, NotPublished> {
    Err(NotPublished::NotBuilt(env!("BLKKIN_NO_SLOT")))
}

/// The function that gives a thread's slot, which is in this program.
#[cfg(blkkin_slot_static)]
fn slot() -> Result<*mut c_void, NotPublished> {
    unsafe extern "C" {
        fn blkkin_thread_slot() -> *const AtomicPtr<Record>;
    }
    let slot = blkkin_thread_slot as unsafe extern "C" fn() -> _;
    if exported::exports(b"otel_thread_ctx_v1") {
        Ok(slot as *mut c_void)
    } else {
        Err(NotPublished::NotExported)
    }
}

/// The function that gives a thread's slot: of the first copy of us in this process.
#[cfg(blkkin_slot)]
fn slot() -> Result<*mut c_void, NotPublished> {
    const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/blkkin-slot.so"));
    // SAFETY: the name ends in a NUL; nothing is loaded that is not there.
    let mut handle =
        unsafe { libc::dlopen(c"blkkin-thread-slot.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        // SAFETY: the name ends in a NUL.
        let taken = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"otel_thread_ctx_v1".as_ptr()) };
        if !taken.is_null() {
            return Err(NotPublished::Taken);
        }
        handle = crate::load::object(c"blkkin-slot", BYTES).map_err(NotPublished::NotLoaded)?;
    }
    // SAFETY: the handle is of an object that is loaded, the name ends in a NUL.
    let function = unsafe { libc::dlsym(handle, c"blkkin_thread_slot".as_ptr()) };
    if function.is_null() { Err(NotPublished::NotLoaded("it has no slot".to_owned())) } else { Ok(function) }
}

impl Stack {
    const fn new() -> Self {
        Self {
            slot: Cell::new(null()),
            depth: Cell::new(0),
            entries: [const { Entry::new() }; DEPTH_MAX + 1],
        }
    }

    fn slot(&self) -> Option<&AtomicPtr<Record>> {
        if self.slot.get().is_null() {
            let function = SLOT.load(Ordering::Acquire);
            if function.is_null() {
                return None;
            }
            // SAFETY: it is null or the slot's function, which is never unloaded.
            let slot_of = unsafe { std::mem::transmute::<*mut c_void, SlotOf>(function) };
            // SAFETY: it has no preconditions.
            self.slot.set(unsafe { slot_of() });
        }
        // SAFETY: a word of this thread's own, for as long as it lives.
        unsafe { self.slot.get().as_ref() }
    }

    fn push(&self, key: u64, context: &Context) {
        let Some(slot) = self.slot() else { return };
        let depth = self.depth.get();
        // First, so that a signal's handler takes the next.
        self.depth.set(depth + 1);
        in_order();
        let Some(entry) = self.entries.get(depth) else { return };
        let record = &entry.record;
        record.valid.store(0, Ordering::Relaxed);
        in_order();
        entry.key.set(key);
        entry.before.set(slot.load(Ordering::Relaxed));
        if context.is_none() || depth == DEPTH_MAX {
            slot.store(null_mut(), Ordering::Relaxed);
            return;
        }
        record.trace[0].store(context.trace_hi.to_be(), Ordering::Relaxed);
        record.trace[1].store(context.trace_lo.to_be(), Ordering::Relaxed);
        record.span.store(context.span.to_be(), Ordering::Relaxed);
        record.flags.store(u8::from(context.sampled), Ordering::Relaxed);
        record.attributes_bytes.store(0, Ordering::Relaxed);
        in_order();
        record.valid.store(1, Ordering::Relaxed);
        in_order();
        slot.store((&raw const *record).cast_mut(), Ordering::Relaxed);
    }

    fn say(&self, key: u64, said: &Said) {
        let entries = &self.entries[..self.depth.get().min(DEPTH_MAX)];
        let Some(entry) = entries.iter().rfind(|entry| entry.key.get() == key) else { return };
        let record = &entry.record;
        if record.valid.load(Ordering::Relaxed) == 0 {
            return;
        }
        record.valid.store(0, Ordering::Relaxed);
        in_order();
        for (word, bytes) in record.attributes.iter().zip(said.entries().chunks(4)) {
            let mut whole = [0; 4];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u32::from_ne_bytes(whole), Ordering::Relaxed);
        }
        record.attributes_bytes.store(said.entries().len() as u16, Ordering::Relaxed);
        in_order();
        record.valid.store(1, Ordering::Relaxed);
    }

    fn pop(&self, key: u64) {
        let depth = self.depth.get();
        let last = self.entries.get(depth.wrapping_sub(1)).filter(|entry| entry.key.get() == key);
        let Some(last) = last else { return self.pop_all(depth, key) };
        let before = last.before.get();
        last.record.valid.store(0, Ordering::Relaxed);
        in_order();
        self.depth.set(depth - 1);
        in_order();
        if let Some(slot) = self.slot() {
            slot.store(before.cast_mut(), Ordering::Relaxed);
        }
    }

    /// Out of order, or too deep.
    #[cold]
    fn pop_all(&self, depth: usize, key: u64) {
        let kept = depth.min(DEPTH_MAX + 1);
        let entries = &self.entries[..kept];
        let left = match entries.iter().rposition(|entry| entry.key.get() == key) {
            Some(left) => left,
            // Of those that are not kept one: which, does not matter.
            None if depth > kept => depth - 1,
            None => return,
        };
        let before = entries.get(left).map(|entry| entry.before.get());
        // What is left is not valid any more, whoever still points at it.
        for entry in entries.iter().skip(left) {
            entry.record.valid.store(0, Ordering::Relaxed);
        }
        in_order();
        self.depth.set(left);
        in_order();
        if let (Some(before), Some(slot)) = (before, self.slot()) {
            slot.store(before.cast_mut(), Ordering::Relaxed);
        }
    }
}

impl Entry {
    const fn new() -> Self {
        Self { record: Record::new(), key: Cell::new(0), before: Cell::new(null()) }
    }
}

impl Record {
    const fn new() -> Self {
        Self {
            trace: [AtomicU64::new(0), AtomicU64::new(0)],
            span: AtomicU64::new(0),
            valid: AtomicU8::new(0),
            flags: AtomicU8::new(0),
            attributes_bytes: AtomicU16::new(0),
            attributes: [const { AtomicU32::new(0) }; BYTES_MAX / 4],
        }
    }
}

/// As the program has it: for whoever reads on the same CPU.
#[inline(always)]
fn in_order() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
