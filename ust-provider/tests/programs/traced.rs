//! A user's program that depends on blkkin-ust and sets no flag. The first argument selects a
//! scenario. It prints the events that a reader of the trace must find.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blkkin_ust::{
    Connected, Instrument, Options, RpcSide, ScopedSpan, SequentialSpans, Span, SpanContext, SpanKind,
};

const SERVICE: &std::ffi::CStr = c"example";

fn main() {
    let scenario = std::env::args().nth(1).unwrap_or_default();
    match scenario.as_str() {
        "spans" => spans(),
        "storm" => storm(number(2), number(3)),
        "sampled" => sampled(number(2), number(3)),
        "forks" => forks(std::env::args().nth(2).as_deref() == Some("followed")),
        "hops" => hops(number(2), number(3)),
        "late" => late(),
        "sequence" => sequence(),
        _ => panic!("unknown scenario"),
    }
}

fn number(index: usize) -> u64 {
    std::env::args().nth(index).and_then(|text| text.parse().ok()).expect("a number")
}

fn connect() -> Connected {
    blkkin_ust::init().unwrap()
}

/// Calls every function once.
fn spans() {
    connect();
    assert!(blkkin_ust::enabled());
    let root = Span::root(SpanKind::Server, c"READ", SERVICE);
    begin(&root, 1, 0, "READ");
    let id = root.context().span;
    {
        let _entered = root.enter();
        println!("blkkin:enter {{ span = {id} }}");
        let scoped = ScopedSpan::child(&root, SpanKind::Client, c"ask");
        begin(&scoped, 2, 1, "ask");
        scoped.add_event(c"sent");
        println!("blkkin:event {{ span = {}, name = \"sent\" }}", scoped.context().span);
        scoped.set_text(c"to", c"there");
        println!("blkkin:text {{ span = {}, key = \"to\", val = \"there\" }}", scoped.context().span);
        scoped.set_number(c"bytes", -4096);
        println!("blkkin:number {{ span = {}, key = \"bytes\", val = -4096 }}", scoped.context().span);
        scoped.rpc_endpoint(RpcSide::Client, c"nbd", c"a-b", 7, false);
        println!(
            "blkkin:rpc_endpoint {{ span = {}, side = 0, unique = 0, protocol = \"nbd\", connection = \"a-b\", cookie = 7 }}",
            scoped.context().span
        );
        scoped.set_error(5);
        println!("blkkin:end {{ span = {}, status = 5 }}", scoped.context().span);
        drop(scoped);
    }
    println!("blkkin:leave {{ span = {id} }}");
    let wire = root.context().to_blkin().unwrap();
    let far = Span::continued(SpanContext::from_blkin(&wire).unwrap(), SpanKind::Server, c"WRITE", SERVICE);
    assert_eq!((far.context().parent, far.context().trace_lo), (id, root.context().trace_lo));
    begin(&far, 1, 0, "WRITE");
    println!("blkkin:end {{ span = {}, status = 0 }}", far.context().span);
    drop(far);
    let parent = root.context().to_traceparent().unwrap();
    let near = ScopedSpan::continued(
        SpanContext::from_traceparent(&parent).unwrap(),
        SpanKind::Server,
        c"TRIM",
        SERVICE,
    );
    begin(&near, 1, 1, "TRIM");
    println!("blkkin:end {{ span = {}, status = 0 }}", near.context().span);
    drop(near);
    println!("blkkin:end {{ span = {id}, status = 0 }}");
    drop(root);
    let counts = blkkin_ust::stats();
    assert_eq!(counts.seen_enabled, 14);
    assert!(counts.time_to_enabled.unwrap() <= Duration::from_secs(3));
    // A span that is not recorded emits nothing. It is the last one, so any event of it would be
    // found.
    let not_sampled = SpanContext { sampled: false, ..SpanContext::from_blkin(&wire).unwrap() };
    let unrecorded = Span::continued(not_sampled, SpanKind::Server, c"x", SERVICE);
    let child = unrecorded.child(SpanKind::Internal, c"y");
    assert!(!unrecorded.is_recording() && !child.is_recording());
    assert_eq!(child.context(), not_sampled);
    drop(Span::none().enter());
}

fn begin(span: &Span, kind: u8, on: u8, name: &str) {
    let context = span.context();
    println!(
        "blkkin:begin {{ trace_hi = {}, trace_lo = {}, span = {}, parent = {}, kind = {kind}, on = {on}, \
         sampled_per_million = 1000000, name = \"{name}\", service = \"example\" }}",
        context.trace_hi, context.trace_lo, context.span, context.parent
    );
}

/// Emits more events than the buffers hold, from threads of which some end before others begin.
fn storm(threads: u64, events: u64) {
    connect();
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let span = ScopedSpan::root(SpanKind::Internal, c"storm", SERVICE);
                    (0..events).for_each(|number| span.set_number(c"number", number as i64));
                });
            }
        });
    }
    println!("{}", blkkin_ust::stats().seen_enabled);
}

/// Begins roots in bursts on two threads, of which sampling drops some. Rate 0 is the default.
fn sampled(rate: u64, seconds: u64) {
    let mut options = Options::default();
    options.roots_per_second = (rate != 0).then(|| u32::try_from(rate).unwrap());
    blkkin_ust::init_with(&options).unwrap();
    let begun = Instant::now();
    let bursts = || {
        let mut made = 0;
        while begun.elapsed() < Duration::from_secs(seconds) {
            for _ in 0..100 {
                let root = ScopedSpan::root(SpanKind::Server, c"root", SERVICE);
                root.set_number(c"number", made);
                let child = ScopedSpan::child(&root, SpanKind::Internal, c"part");
                assert_eq!(root.is_recording(), child.is_recording());
                assert_eq!(root.context().to_traceparent().unwrap().ends_with("-01"), root.is_recording());
                made += 1;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        made
    };
    let made = std::thread::scope(|scope| {
        let other = scope.spawn(bursts);
        bursts() + other.join().unwrap()
    });
    println!("{made}");
}

/// Forks a child, which then emits events.
fn forks(followed: bool) {
    let mut options = Options::default();
    options.follow_forks = followed;
    blkkin_ust::init_with(&options).unwrap();
    drop(ScopedSpan::root(SpanKind::Internal, c"parent", SERVICE));
    // SAFETY: the only other threads are LTTng's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let begun = Instant::now();
        // The fork has waited for LTTng as long as `init` does. After that its session starts some
        // time after its events.
        if followed && !blkkin_ust::enabled() {
            while !blkkin_ust::enabled() && begun.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        drop(ScopedSpan::root(SpanKind::Internal, c"child", SERVICE));
        let events = blkkin_ust::stats().seen_enabled;
        let error = blkkin_ust::init().err().map(|error| error.to_string());
        println!("{events} {}", error.unwrap_or_default());
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(ScopedSpan::root(SpanKind::Internal, c"parent again", SERVICE));
    println!("{} {child}", std::process::id());
}

/// Runs tasks that move between threads, each in a span, with a child span inside.
fn hops(tasks: u64, awaits: u64) {
    static MOVED: AtomicBool = AtomicBool::new(false);
    connect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    runtime.block_on(async {
        let tasks = (0..tasks).map(|task| {
            let span = Arc::new(Span::root(SpanKind::Server, c"task", SERVICE));
            let inner = Arc::clone(&span);
            let work = async move {
                let first = std::thread::current().id();
                for step in 0..awaits {
                    tokio::task::yield_now().await;
                    // On a busy machine one thread could run all tasks. While it sleeps, another
                    // one takes waiting tasks.
                    if std::thread::current().id() != first {
                        MOVED.store(true, Ordering::Relaxed);
                    } else if !MOVED.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    inner.set_number(c"outer", (task << 32 | step) as i64);
                    let part = inner.child(SpanKind::Internal, c"part");
                    let id = part.context().span as i64;
                    async {
                        tokio::task::yield_now().await;
                        inner.set_number(c"inner", id);
                    }
                    .instrument(part)
                    .await;
                }
            };
            tokio::spawn(work.instrument(span))
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
}

/// Waits for a session to start while a span is open.
fn late() {
    connect();
    let connection = Span::root(SpanKind::Server, c"connection", SERVICE);
    assert!(!connection.is_recording());
    println!("ready");
    // Waits until the session has started, not only until its events are enabled. LTTng-UST enables
    // them first, then registers its channels with the session daemon, and drops events meanwhile
    // (lttng_session_enable, src/lib/lttng-ust/lttng-events.c).
    std::io::stdin().read_line(&mut String::new()).unwrap();
    assert!(blkkin_ust::enabled());
    drop(connection.child(SpanKind::Server, c"request"));
    assert!(blkkin_ust::stats().time_to_enabled.unwrap() > Duration::ZERO);
}

/// Works for one span after another.
fn sequence() {
    connect();
    let spans = [c"READ", c"WRITE", c"FLUSH"].map(|name| {
        let span = Span::root(SpanKind::Server, name, SERVICE);
        begin(&span, 1, 0, name.to_str().unwrap());
        span
    });
    let mut current = SequentialSpans::new();
    let mut before = None;
    for span in &spans {
        current.enter(span);
        if let Some(before) = before.replace(span.context().span) {
            println!("blkkin:leave {{ span = {before} }}");
        }
        println!("blkkin:enter {{ span = {} }}", span.context().span);
    }
    current.exit();
    println!("blkkin:leave {{ span = {} }}", before.unwrap());
    for span in spans {
        println!("blkkin:end {{ span = {}, status = 0 }}", span.context().span);
        drop(span);
    }
}
