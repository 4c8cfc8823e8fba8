//! What the loader of shared objects says this thread's variable is, and what lies there.

#![allow(clippy::print_stdout, reason = "a test that a machine cannot run says so")]

use super::*;
use crate::{Here, Kind, Span};

thread_local! {
    /// Asked for once: a signal's handler must not.
    static VARIABLE: Cell<*const *const [u8; 28]> = const { Cell::new(null()) };
}

/// Where this thread's variable is.
fn variable() -> *const *const [u8; 28] {
    if VARIABLE.get().is_null() {
        // SAFETY: the names end in a NUL, nothing is loaded that is not there.
        let found = unsafe {
            let slot = libc::dlopen(c"blkkin-thread-slot.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            libc::dlsym(slot, c"otel_thread_ctx_v1".as_ptr())
        };
        assert!(!found.is_null(), "there is no such symbol");
        VARIABLE.set(found.cast());
    }
    VARIABLE.get()
}

/// As OTEP 4947 has it: the ids, whether they are valid, and the flags; none where the thread publishes nothing.
fn read() -> Option<([u8; 16], [u8; 8], u8)> {
    // SAFETY: this thread's variable, and a record that it points at.
    let record = unsafe { variable().read_volatile().as_ref()? };
    assert!(record[24] <= 1);
    (record[24] == 1)
        .then(|| (record[..16].try_into().unwrap(), record[16..24].try_into().unwrap(), record[25]))
}

/// What lies behind that; none where the thread publishes nothing.
fn said() -> Option<Vec<u8>> {
    read()?;
    // SAFETY: as above; behind its head lie as many bytes as it says.
    unsafe {
        let record = variable().read_volatile().cast::<u8>();
        let bytes = u16::from_ne_bytes([*record.add(26), *record.add(27)]);
        Some(std::slice::from_raw_parts(record.add(28), bytes.into()).to_vec())
    }
}

fn context(number: u64) -> Context {
    Context { trace_hi: !number, trace_lo: number, span: number, parent: 0, sampled: number % 2 == 1 }
}

fn span(number: u64) -> Span {
    Span::continued(context(number), Kind::Server, c"x", c"s")
}

fn named() -> Option<u64> {
    let (trace, span, flags) = read()?;
    let span = u64::from_be_bytes(span);
    assert_eq!(u128::from_be_bytes(trace), u128::from(!span) << 64 | u128::from(span));
    assert_eq!(u64::from(flags), span % 2);
    Some(span)
}

/// Whether this machine can; said where not.
fn publishes() -> bool {
    static ONCE: std::sync::OnceLock<Result<(), NotPublished>> = std::sync::OnceLock::new();
    match ONCE.get_or_init(|| begin(true)) {
        Ok(()) => true,
        Err(why @ NotPublished::NotBuilt(_)) => {
            println!("skipped: {why}");
            false
        }
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn the_innermost_is_published_and_the_one_around_it_comes_back() {
    if !publishes() {
        return;
    }
    assert_eq!(named(), None);
    let (outer, inner, none) = (span(7), span(8), Span::none());
    let of_outer = outer.enter();
    assert_eq!(named(), Some(7));
    {
        let _of_inner = inner.enter();
        assert_eq!(named(), Some(8));
        // A child that is not recorded carries its parent on.
        let child = inner.child(Kind::Internal, c"y");
        let _of_child = child.enter();
        assert_eq!(named(), Some(8));
        // What it works for now has no name: it does not work for what is around it.
        let of_none = none.enter();
        assert_eq!(named(), None);
        drop(of_none);
        assert_eq!(named(), Some(8));
        let here = Here::root(Kind::Server, c"r", c"s");
        assert_eq!(named(), None);
        let moved = Box::new(here);
        drop(moved);
        assert_eq!(named(), Some(8));
        let here = Here::continued(context(9), Kind::Server, c"c", c"s");
        assert_eq!(named(), Some(9));
        let below = Here::child(&here, Kind::Internal, c"d");
        assert_eq!(named(), Some(9));
        drop(below);
        assert_eq!(named(), Some(9));
        drop(here);
        assert_eq!(named(), Some(8));
    }
    assert_eq!(named(), Some(7));
    // Another thread is another matter.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(named(), None);
            let _working = inner.enter();
            assert_eq!(named(), Some(8));
        });
    });
    assert_eq!(named(), Some(7));
    drop(of_outer);
    assert_eq!(named(), None);
}

#[test]
fn what_was_left_is_never_published_again() {
    if !publishes() {
        return;
    }
    let (one, two, three) = (span(1), span(2), span(3));
    let (a, b) = (one.enter(), two.enter());
    drop(a);
    assert_eq!(named(), None, "leaving the outer one leaves the inner one");
    let c = three.enter();
    drop(b);
    assert_eq!(named(), Some(3), "what was left with another is left once");
    drop(c);
    assert_eq!(named(), None);
    // Without an id there is nothing to be published.
    let nobody = Span::continued(Context::NONE, Kind::Server, c"x", c"s");
    let _of_nobody = nobody.enter();
    assert_eq!(named(), None);
}

#[test]
fn what_is_too_deep_hides_what_is_around_it() {
    if !publishes() {
        return;
    }
    let spans: Vec<Span> = (1..=DEPTH_MAX as u64 + 5).map(span).collect();
    let mut guards = Vec::new();
    for (number, span) in (1..).zip(&spans) {
        guards.push(span.enter());
        assert_eq!(named(), (number <= DEPTH_MAX as u64).then_some(number));
    }
    for number in (1..=spans.len() as u64).rev() {
        assert_eq!(named(), (number <= DEPTH_MAX as u64).then_some(number));
        drop(guards.pop());
    }
    assert_eq!(named(), None);
}

/// Whoever stops the thread at any moment finds a whole record, or none: here a timer's signal, which enters and leaves a span of its
/// own besides.
#[test]
fn nobody_sees_a_half() {
    if !publishes() {
        return;
    }
    static SEEN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    extern "C" fn look(_signal: i32) {
        let looked = |seen: Option<u64>| SEEN[usize::from(seen.is_some())].fetch_add(1, Ordering::Relaxed);
        let before = named();
        looked(before);
        let own = context(99);
        enter(99, &own);
        assert_eq!(named(), Some(99));
        leave(99);
        // A record that was being filled is nobody's yet.
        assert_eq!(named(), before);
    }
    variable();
    // SAFETY: the handler reads and writes this thread's own memory; the timer is this thread's and ends before it does.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = look as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGUSR1;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = std::mem::zeroed();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        // Often enough to meet every place, and seldom enough to get on.
        let every = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
        let spec = libc::itimerspec { it_interval: every, it_value: every };
        assert_eq!(libc::timer_settime(timer, 0, &spec, std::ptr::null_mut()), 0);
        let (one, two) = (context(11), context(12));
        while SEEN.iter().any(|seen| seen.load(Ordering::Relaxed) < 500) {
            enter(1, &one);
            enter(2, &two);
            leave(2);
            assert_eq!(named(), Some(11));
            leave(1);
            assert_eq!(named(), None);
        }
        assert_eq!(libc::timer_delete(timer), 0);
    }
    println!("seen from a signal's handler: {SEEN:?} (none, a span)");
}

#[test]
fn what_is_said_is_of_the_span_that_it_was_said_in() {
    if !publishes() {
        return;
    }
    let key = crate::ThreadKey(3);
    let word = |value: &str| Some([&[3, value.len() as u8], value.as_bytes()].concat());
    let (outer, inner, none) = (span(7), span(8), Span::none());
    let of_outer = outer.enter();
    assert_eq!(said(), Some(Vec::new()));
    of_outer.says(&Said::new().with(key, "outer"));
    assert_eq!((named(), said()), (Some(7), word("outer")));
    {
        let of_inner = inner.enter();
        assert_eq!(said(), Some(Vec::new()), "it may be somebody else's request");
        // Of what is around it, and then of it.
        of_outer.says(&Said::new().with(key, "longer than before"));
        assert_eq!(said(), Some(Vec::new()));
        of_inner.says(&Said::new().with(key, "inner"));
        assert_eq!((named(), said()), (Some(8), word("inner")));
        let of_none = none.enter();
        of_none.says(&Said::new().with(key, "nobody"));
        assert_eq!(read(), None);
    }
    assert_eq!((named(), said()), (Some(7), word("longer than before")));
    of_outer.says(&Said::new());
    assert_eq!((named(), said()), (Some(7), Some(Vec::new())));
    drop(of_outer);
    let here = Here::continued(context(9), Kind::Server, c"x", c"s");
    assert_eq!(said(), Some(Vec::new()), "a record serves again");
    here.says(&Said::new().with(key, &"x".repeat(226)));
    assert_eq!((named(), said()), (Some(9), word(&"x".repeat(226))));
}
