//! OpenTelemetry's *thread context* (OTEP 4947): the current span of each thread, for readers of
//! other processes.
//!
//! *In*: the spans that the crate's users enter and leave, and their [`ThreadAttributes`]. *Out*:
//! the thread's slot points to a record with trace id, span id, flags and attributes, or to
//! nothing. blkkin's eBPF programs and profilers read it while the thread is in a system call or
//! interrupted, so it is exact at that moment. It needs neither LTTng nor any event.
//!
//! *Invariant*: the slot names the innermost span that this thread has entered and not left, or
//! nothing; never one that it has left. A span without a context (no session recorded when it
//! began) therefore hides the spans around it, and so does a span that is entered deeper than
//! [`DEPTH_MAX`]. A guard that is dropped out of order also leaves the spans entered after it, as
//! `ust-bridge` interprets the events.
//!
//! *Attributes* belong to the span for which they were set. A span that is entered inside has none
//! until they are set for it, because it may work for another client's request.
//!
//! *Order of writes* (OTEP 4947, *Publication Protocol*): each depth has its own record. It is
//! marked invalid, written, marked valid, and then the slot points to it. Attributes that are set
//! later are written in place, with the same mark. A reader therefore never sees half a record,
//! even if a signal handler enters and leaves spans in between. Compiler barriers suffice: a reader
//! is on the same CPU, as a signal handler is.
//!
//! *Without LTTng*: contexts of remote spans ([`Span::continued`](crate::Span::continued)) and of
//! their children are published. A root that begins while no session records is not. It has no ids,
//! which is why it costs 0.4 ns, and no tool could show the span.
//!
//! *The slot* is a shared object of 13 KiB, embedded and loaded by `init()`, as the probe is.
//! *Rejected*: a symbol in the program. An executable exports none without a linker option. A
//! dependency cannot do that for `cc`, and for rustc only by means that differ between linkers. The
//! symbol would also exist while publishing is disabled, next to that of another tracing library of
//! the process. *Price*: system calls before `init()`, and for some ms after it, have no span. A
//! static executable loads nothing. It contains the slot and publishes if it exports the symbol
//! ([`exported`]).

#[cfg(any(test, blkkin_slot_static))]
mod exported;

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::{self, Display, Formatter};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::span_context::SpanContext;
use crate::thread_attributes::{BYTES_MAX, ThreadAttributes};

/// Maximum entered spans of a thread. A span that is entered deeper hides them.
const DEPTH_MAX: usize = 16;

/// [`STATE`]: publishing is disabled.
const OFF: u8 = 0;
/// [`STATE`]: publishing is enabled, and no context was published yet.
const IDLE: u8 = 1;
/// [`STATE`]: a context was published.
const USED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(OFF);

/// `blkkin_thread_slot` of `c/slot/slot.c`, once it is loaded.
static SLOT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

type SlotFunction = unsafe extern "C" fn() -> *const AtomicPtr<Record>;

/// Reason why thread contexts are not published.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ThreadContextError {
    /// [`init`](crate::init) was not called.
    NotInitialized,
    /// The environment has `BLKKIN_UST_CONTEXT=0`, or
    /// [`Options::thread_context`](crate::Options::thread_context) is false.
    Disabled,
    /// The crate was built without the slot.
    NotBuilt(&'static str),
    /// Another library of this process publishes thread contexts.
    AlreadyPublished,
    /// The executable is static, and its linker did not export the slot.
    NotExported,
    /// The slot cannot be loaded.
    NotLoaded(String),
}

impl Display for ThreadContextError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialized => f.write_str("not initialized"),
            Self::Disabled => f.write_str("switched off by BLKKIN_UST_CONTEXT=0 or by an option"),
            Self::NotBuilt(reason) => write!(f, "built without it: {reason}"),
            Self::AlreadyPublished => {
                f.write_str("another library of this process publishes otel_thread_ctx_v1")
            }
            Self::NotExported => f.write_str(
                "this static executable does not export otel_thread_ctx_v1: link it with \
                 -Wl,--export-dynamic-symbol=otel_thread_ctx_v1",
            ),
            Self::NotLoaded(reason) => write!(f, "cannot load the slot: {reason}"),
        }
    }
}

impl std::error::Error for ThreadContextError {}

/// Record of OTEP 4947, byte for byte.
#[repr(C)]
struct Record {
    /// Two big-endian halves.
    trace: [AtomicU64; 2],
    /// Big-endian.
    span: AtomicU64,
    valid: AtomicU8,
    flags: AtomicU8,
    attributes_bytes: AtomicU16,
    /// Entries in their published form. They are written by words, because each thread that
    /// continues the work writes them.
    attributes: [AtomicU32; BYTES_MAX / 4],
}

const _: () = assert!(size_of::<Record>() == 256 && std::mem::offset_of!(Record, attributes) == 28);

/// An entered span.
struct Entry {
    record: Record,
    /// Key by which it is left.
    key: Cell<u64>,
    /// Previous value of the slot.
    before: Cell<*const Record>,
}

struct Stack {
    /// Slot of the thread; null until the first use.
    slot: Cell<*const AtomicPtr<Record>>,
    /// Number of entered spans. The first [`DEPTH_MAX`] have records, and the next entry keeps the
    /// slot's previous value.
    depth: Cell<usize>,
    entries: [Entry; DEPTH_MAX + 1],
}

thread_local! {
    static STACK: Stack = const { Stack::new() };
}

/// Returns whether entering or leaving a span changes the published context: it has a context, or
/// may hide one.
#[inline(always)]
pub(crate) fn needs_publishing(has_context: bool) -> bool {
    match STATE.load(Ordering::Relaxed) {
        OFF => false,
        IDLE => has_context,
        _ => true,
    }
}

/// Returns whether readers of this process find the current spans of its threads.
#[inline]
pub(crate) fn is_publishing() -> bool {
    STATE.load(Ordering::Relaxed) != OFF
}

/// Makes `context` the current one of this thread. [`SpanContext::NONE`] hides the one around it.
pub(crate) fn enter(key: u64, context: &SpanContext) {
    if STATE.load(Ordering::Relaxed) != USED {
        if context.is_none() {
            return;
        }
        STATE.store(USED, Ordering::Relaxed);
    }
    STACK.with(|stack| stack.push(key, context));
}

/// Leaves the innermost span with this key, and all spans entered after it. Does nothing if there
/// is none.
pub(crate) fn leave(key: u64) {
    STACK.with(|stack| stack.pop(key));
}

/// Replaces the attributes of the entered span with this key. Does nothing if it is not published.
pub(crate) fn set_attributes(key: u64, attributes: &ThreadAttributes) {
    STACK.with(|stack| stack.set_attributes(key, attributes));
}

/// Starts publishing, if a slot is available.
pub(crate) fn start(wanted: bool) -> Result<(), ThreadContextError> {
    if !wanted || std::env::var_os("BLKKIN_UST_CONTEXT").is_some_and(|value| value == "0") {
        return Err(ThreadContextError::Disabled);
    }
    SLOT.store(slot()?, Ordering::Release);
    STATE.store(IDLE, Ordering::Release);
    Ok(())
}

#[cfg(not(any(blkkin_slot, blkkin_slot_static)))]
fn slot() -> Result<*mut c_void, ThreadContextError> {
    Err(ThreadContextError::NotBuilt(env!("BLKKIN_NO_SLOT")))
}

/// Returns the function that returns a thread's slot, which is in this program.
#[cfg(blkkin_slot_static)]
fn slot() -> Result<*mut c_void, ThreadContextError> {
    unsafe extern "C" {
        fn blkkin_thread_slot() -> *const AtomicPtr<Record>;
    }
    let slot = blkkin_thread_slot as unsafe extern "C" fn() -> _;
    if exported::exports(b"otel_thread_ctx_v1") {
        Ok(slot as *mut c_void)
    } else {
        Err(ThreadContextError::NotExported)
    }
}

/// Returns the function that returns a thread's slot. All copies of this library in the process use
/// the first one's.
#[cfg(blkkin_slot)]
fn slot() -> Result<*mut c_void, ThreadContextError> {
    const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/blkkin-slot.so"));
    // SAFETY: the name ends in a NUL. RTLD_NOLOAD loads nothing.
    let mut handle =
        unsafe { libc::dlopen(c"blkkin-thread-slot.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        // SAFETY: the name ends in a NUL.
        let existing = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"otel_thread_ctx_v1".as_ptr()) };
        if !existing.is_null() {
            return Err(ThreadContextError::AlreadyPublished);
        }
        handle = crate::load::object(c"blkkin-slot", BYTES).map_err(ThreadContextError::NotLoaded)?;
    }
    // SAFETY: the handle is of an object that is loaded, the name ends in a NUL.
    let function = unsafe { libc::dlsym(handle, c"blkkin_thread_slot".as_ptr()) };
    if function.is_null() {
        Err(ThreadContextError::NotLoaded("it has no slot".to_owned()))
    } else {
        Ok(function)
    }
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
            // SAFETY: it is the slot's function, which is never unloaded.
            let slot_function = unsafe { std::mem::transmute::<*mut c_void, SlotFunction>(function) };
            // SAFETY: it has no preconditions.
            self.slot.set(unsafe { slot_function() });
        }
        // SAFETY: a word of this thread, which lives as long as the thread.
        unsafe { self.slot.get().as_ref() }
    }

    fn push(&self, key: u64, context: &SpanContext) {
        let Some(slot) = self.slot() else { return };
        let depth = self.depth.get();
        // First, so that a signal handler uses the next entry.
        self.depth.set(depth + 1);
        compiler_barrier();
        let Some(entry) = self.entries.get(depth) else { return };
        let record = &entry.record;
        record.valid.store(0, Ordering::Relaxed);
        compiler_barrier();
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
        compiler_barrier();
        record.valid.store(1, Ordering::Relaxed);
        compiler_barrier();
        slot.store((&raw const *record).cast_mut(), Ordering::Relaxed);
    }

    fn set_attributes(&self, key: u64, attributes: &ThreadAttributes) {
        let entries = &self.entries[..self.depth.get().min(DEPTH_MAX)];
        let Some(entry) = entries.iter().rfind(|entry| entry.key.get() == key) else { return };
        let record = &entry.record;
        if record.valid.load(Ordering::Relaxed) == 0 {
            return;
        }
        record.valid.store(0, Ordering::Relaxed);
        compiler_barrier();
        for (word, bytes) in record.attributes.iter().zip(attributes.entries().chunks(4)) {
            let mut whole = [0; 4];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u32::from_ne_bytes(whole), Ordering::Relaxed);
        }
        record.attributes_bytes.store(attributes.entries().len() as u16, Ordering::Relaxed);
        compiler_barrier();
        record.valid.store(1, Ordering::Relaxed);
    }

    fn pop(&self, key: u64) {
        let depth = self.depth.get();
        let last = self.entries.get(depth.wrapping_sub(1)).filter(|entry| entry.key.get() == key);
        let Some(last) = last else { return self.pop_out_of_order(depth, key) };
        let before = last.before.get();
        last.record.valid.store(0, Ordering::Relaxed);
        compiler_barrier();
        self.depth.set(depth - 1);
        compiler_barrier();
        if let Some(slot) = self.slot() {
            slot.store(before.cast_mut(), Ordering::Relaxed);
        }
    }

    /// Leaves a span that is not the last entered one, or one that is deeper than the entries.
    #[cold]
    fn pop_out_of_order(&self, depth: usize, key: u64) {
        let kept = depth.min(DEPTH_MAX + 1);
        let entries = &self.entries[..kept];
        let left = match entries.iter().rposition(|entry| entry.key.get() == key) {
            Some(left) => left,
            // One of the spans without an entry. They are interchangeable.
            None if depth > kept => depth - 1,
            None => return,
        };
        let before = entries.get(left).map(|entry| entry.before.get());
        // A left record becomes invalid, even if another one still refers to it.
        for entry in entries.iter().skip(left) {
            entry.record.valid.store(0, Ordering::Relaxed);
        }
        compiler_barrier();
        self.depth.set(left);
        compiler_barrier();
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

/// Keeps the program order of writes for a reader on the same CPU.
#[inline(always)]
fn compiler_barrier() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
