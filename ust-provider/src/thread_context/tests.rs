//! Tests of the published record, read through the symbol that the dynamic loader resolves.

#![allow(clippy::print_stdout, reason = "a test that this machine cannot run prints why")]

use super::*;
use crate::{ScopedSpan, Span, SpanKind};

thread_local! {
    /// Address of the variable, resolved once: a signal handler must not call the loader.
    static VARIABLE: Cell<*const *const [u8; 28]> = const { Cell::new(null()) };
}

/// Returns the address of this thread's variable.
fn variable() -> *const *const [u8; 28] {
    if VARIABLE.get().is_null() {
        // SAFETY: the names end in a NUL. RTLD_NOLOAD loads nothing.
        let found = unsafe {
            let slot = libc::dlopen(c"blkkin-thread-slot.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            libc::dlsym(slot, c"otel_thread_ctx_v1".as_ptr())
        };
        assert!(!found.is_null(), "the symbol is missing");
        VARIABLE.set(found.cast());
    }
    VARIABLE.get()
}

/// Reads trace id, span id and flags by OTEP 4947. None if the thread publishes nothing.
fn read() -> Option<([u8; 16], [u8; 8], u8)> {
    // SAFETY: this thread's variable, which is null or points to a record.
    let record = unsafe { variable().read_volatile().as_ref()? };
    assert!(record[24] <= 1);
    (record[24] == 1)
        .then(|| (record[..16].try_into().unwrap(), record[16..24].try_into().unwrap(), record[25]))
}

/// Reads the attributes. None if the thread publishes nothing.
fn attributes() -> Option<Vec<u8>> {
    read()?;
    // SAFETY: the variable points to a record, whose header has the length of the attributes that
    // follow it.
    unsafe {
        let record = variable().read_volatile().cast::<u8>();
        let bytes = u16::from_ne_bytes([*record.add(26), *record.add(27)]);
        Some(std::slice::from_raw_parts(record.add(28), bytes.into()).to_vec())
    }
}

fn context(number: u64) -> SpanContext {
    SpanContext { trace_hi: !number, trace_lo: number, span: number, parent: 0, sampled: number % 2 == 1 }
}

fn span(number: u64) -> Span {
    Span::continued(context(number), SpanKind::Server, c"x", c"s")
}

fn published_span() -> Option<u64> {
    let (trace, span, flags) = read()?;
    let span = u64::from_be_bytes(span);
    assert_eq!(u128::from_be_bytes(trace), u128::from(!span) << 64 | u128::from(span));
    assert_eq!(u64::from(flags), span % 2);
    Some(span)
}

/// Starts publishing once. Prints the reason if the crate was built without it.
fn can_publish() -> bool {
    static ONCE: std::sync::OnceLock<Result<(), ThreadContextError>> = std::sync::OnceLock::new();
    match ONCE.get_or_init(|| start(true)) {
        Ok(()) => true,
        Err(error @ ThreadContextError::NotBuilt(_)) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_innermost_span_is_published_and_the_outer_one_restored() {
    if !can_publish() {
        return;
    }
    assert_eq!(published_span(), None);
    let (outer, inner, none) = (span(7), span(8), Span::none());
    let of_outer = outer.enter();
    assert_eq!(published_span(), Some(7));
    {
        let _of_inner = inner.enter();
        assert_eq!(published_span(), Some(8));
        // A child that is not recorded propagates the context of its parent.
        let child = inner.child(SpanKind::Internal, c"y");
        let _of_child = child.enter();
        assert_eq!(published_span(), Some(8));
        // The current span has no ids, so the outer span must not be published either.
        let of_none = none.enter();
        assert_eq!(published_span(), None);
        drop(of_none);
        assert_eq!(published_span(), Some(8));
        let scoped = ScopedSpan::root(SpanKind::Server, c"r", c"s");
        assert_eq!(published_span(), None);
        let moved = Box::new(scoped);
        drop(moved);
        assert_eq!(published_span(), Some(8));
        let scoped = ScopedSpan::continued(context(9), SpanKind::Server, c"c", c"s");
        assert_eq!(published_span(), Some(9));
        let child = ScopedSpan::child(&scoped, SpanKind::Internal, c"d");
        assert_eq!(published_span(), Some(9));
        drop(child);
        assert_eq!(published_span(), Some(9));
        drop(scoped);
        assert_eq!(published_span(), Some(8));
    }
    assert_eq!(published_span(), Some(7));
    // Each thread has its own slot.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(published_span(), None);
            let _entered = inner.enter();
            assert_eq!(published_span(), Some(8));
        });
    });
    assert_eq!(published_span(), Some(7));
    drop(of_outer);
    assert_eq!(published_span(), None);
}

#[test]
fn a_left_span_is_never_published_again() {
    if !can_publish() {
        return;
    }
    let (one, two, three) = (span(1), span(2), span(3));
    let (a, b) = (one.enter(), two.enter());
    drop(a);
    assert_eq!(published_span(), None, "leaving the outer span leaves the inner one");
    let c = three.enter();
    drop(b);
    assert_eq!(published_span(), Some(3), "a span that was left with another one is left once");
    drop(c);
    assert_eq!(published_span(), None);
    // A span without ids publishes nothing.
    let without_ids = Span::continued(SpanContext::NONE, SpanKind::Server, c"x", c"s");
    let _entered = without_ids.enter();
    assert_eq!(published_span(), None);
}

#[test]
fn a_span_that_is_too_deep_hides_the_outer_spans() {
    if !can_publish() {
        return;
    }
    let spans: Vec<Span> = (1..=DEPTH_MAX as u64 + 5).map(span).collect();
    let mut guards = Vec::new();
    for (number, span) in (1..).zip(&spans) {
        guards.push(span.enter());
        assert_eq!(published_span(), (number <= DEPTH_MAX as u64).then_some(number));
    }
    for number in (1..=spans.len() as u64).rev() {
        assert_eq!(published_span(), (number <= DEPTH_MAX as u64).then_some(number));
        drop(guards.pop());
    }
    assert_eq!(published_span(), None);
}

/// A reader that stops the thread at any moment finds a whole record or none. The reader here is
/// the handler of a timer signal, which also enters and leaves a span of its own.
#[test]
fn a_reader_never_sees_half_a_record() {
    if !can_publish() {
        return;
    }
    static SEEN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    extern "C" fn on_signal(_signal: i32) {
        let count = |seen: Option<u64>| SEEN[usize::from(seen.is_some())].fetch_add(1, Ordering::Relaxed);
        let before = published_span();
        count(before);
        let own = context(99);
        enter(99, &own);
        assert_eq!(published_span(), Some(99));
        leave(99);
        // The interrupted write has not published its record yet.
        assert_eq!(published_span(), before);
    }
    variable();
    // SAFETY: the handler accesses only memory of this thread. The timer signals this thread and is
    // deleted before it ends.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGUSR1;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = std::mem::zeroed();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        // Short enough to interrupt at every instruction, and long enough for progress between
        // signals.
        let every = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
        let spec = libc::itimerspec { it_interval: every, it_value: every };
        assert_eq!(libc::timer_settime(timer, 0, &spec, std::ptr::null_mut()), 0);
        let (one, two) = (context(11), context(12));
        while SEEN.iter().any(|seen| seen.load(Ordering::Relaxed) < 500) {
            enter(1, &one);
            enter(2, &two);
            leave(2);
            assert_eq!(published_span(), Some(11));
            leave(1);
            assert_eq!(published_span(), None);
        }
        assert_eq!(libc::timer_delete(timer), 0);
    }
    println!("seen by the signal handler: {SEEN:?} (none, a span)");
}

#[test]
fn attributes_belong_to_the_span_for_which_they_were_set() {
    if !can_publish() {
        return;
    }
    let key = crate::ThreadKey(3);
    let entry = |value: &str| Some([&[3, value.len() as u8], value.as_bytes()].concat());
    let (outer, inner, none) = (span(7), span(8), Span::none());
    let of_outer = outer.enter();
    assert_eq!(attributes(), Some(Vec::new()));
    of_outer.set_thread_attributes(&ThreadAttributes::new().with(key, "outer"));
    assert_eq!((published_span(), attributes()), (Some(7), entry("outer")));
    {
        let of_inner = inner.enter();
        assert_eq!(attributes(), Some(Vec::new()), "an inner span inherits no attributes");
        // Set for the outer span, then for the inner one.
        of_outer.set_thread_attributes(&ThreadAttributes::new().with(key, "longer than before"));
        assert_eq!(attributes(), Some(Vec::new()));
        of_inner.set_thread_attributes(&ThreadAttributes::new().with(key, "inner"));
        assert_eq!((published_span(), attributes()), (Some(8), entry("inner")));
        let of_none = none.enter();
        of_none.set_thread_attributes(&ThreadAttributes::new().with(key, "unpublished"));
        assert_eq!(read(), None);
    }
    assert_eq!((published_span(), attributes()), (Some(7), entry("longer than before")));
    of_outer.set_thread_attributes(&ThreadAttributes::new());
    assert_eq!((published_span(), attributes()), (Some(7), Some(Vec::new())));
    drop(of_outer);
    let scoped = ScopedSpan::continued(context(9), SpanKind::Server, c"x", c"s");
    assert_eq!(attributes(), Some(Vec::new()), "a reused record starts without attributes");
    scoped.set_thread_attributes(&ThreadAttributes::new().with(key, &"x".repeat(226)));
    assert_eq!((published_span(), attributes()), (Some(9), entry(&"x".repeat(226))));
}
