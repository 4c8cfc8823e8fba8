//! A program whose system calls reveal their span: each one reads a byte at an offset that is the
//! id of its span, or 0 for no span. So a test can check a tracer call by call, and blkkin's tests
//! do.
//!
//! `publisher hops|pool FILE GO [TIMES]`: reads FILE, first in one span until the file GO exists,
//! then in the measured spans. With `hops` these are tasks that move between threads at each await,
//! with `pool` jobs that a pool of threads passes on. The spans continue remote ones, so they need
//! no LTTng. Each thread also publishes the number of its span as the attribute `work.number`. At
//! the end it prints the numbers of calls in spans and of calls without one.
//!
//! `publisher shop FILE ZIPKIN COLLECTOR`: an application that handles requests and exports its own
//! spans, as JSON to a Zipkin and by OTLP to a collector, each `HOST:PORT`. For each request it
//! reads a byte, writes one and syncs it to the disk.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it fails by panicking, and prints what it did")]

use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blkkin_ust::{Instrument, ScopedSpan, Span, SpanContext, SpanKind, ThreadAttributes, ThreadKey};

const SERVICE: &CStr = c"publisher";
/// Span of the calls until the tracer is ready, which are not counted.
const WAITING: u64 = 1 << 40;
const THREADS: u64 = 4;

static FILE: LazyLock<File> = LazyLock::new(|| File::open(std::env::args().nth(2).expect("a file")).unwrap());
static NUMBER: LazyLock<ThreadKey> = LazyLock::new(|| blkkin_ust::thread_key("work.number").unwrap());
static CALLS_IN_SPANS: AtomicU64 = AtomicU64::new(0);
static CALLS_WITHOUT_SPAN: AtomicU64 = AtomicU64::new(0);

fn main() {
    // The error is ignored: thread contexts are published without LTTng too.
    let _ = blkkin_ust::init();
    blkkin_ust::publishing().unwrap();
    blkkin_ust::publish_process(&[("service.name", "publisher"), ("service.instance.id", "one")]).unwrap();
    // Registers the key before any thread uses it.
    LazyLock::force(&NUMBER);
    let args: Vec<String> = std::env::args().collect();
    if args[1] == "shop" {
        return shop(&args[3], &args[4]);
    }
    await_go(Path::new(&args[3]));
    let times = args.get(4).map_or(1, |times| times.parse().unwrap());
    match &*args[1] {
        "hops" => hops(times),
        "pool" => pool(times),
        _ => panic!("hops or pool"),
    }
    call(0);
    println!(
        "below {} none {}",
        CALLS_IN_SPANS.load(Ordering::Relaxed),
        CALLS_WITHOUT_SPAN.load(Ordering::Relaxed)
    );
}

/// Context of a span. Its trace id is its number and the complement, so a test can check it.
fn context(span: u64) -> SpanContext {
    SpanContext { trace_hi: !span, trace_lo: span, span, parent: 0, sampled: span % 2 == 1 }
}

fn span(number: u64) -> Span {
    Span::continued(context(number), SpanKind::Server, c"work", SERVICE)
}

fn attributes(number: u64) -> ThreadAttributes {
    ThreadAttributes::new().with(*NUMBER, &number.to_string())
}

fn call(span: u64) {
    let counter = if span == 0 { &CALLS_WITHOUT_SPAN } else { &CALLS_IN_SPANS };
    counter.fetch_add(u64::from(span != WAITING), Ordering::Relaxed);
    FILE.read_at(&mut [0], span).unwrap();
}

fn await_go(go: &Path) {
    let span = span(WAITING);
    let _entered = span.enter();
    while !go.exists() {
        call(WAITING);
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Calls in nested spans, without an await.
fn steps(own: u64) {
    call(own);
    {
        let scoped = ScopedSpan::continued(context(own + 1), SpanKind::Internal, c"here", SERVICE);
        scoped.set_thread_attributes(&attributes(own + 1));
        call(own + 1);
        // Not recorded: it propagates the context of its parent, with its own attributes.
        let child = ScopedSpan::child(&scoped, SpanKind::Internal, c"below");
        child.set_thread_attributes(&attributes(own + 1));
        call(own + 1);
    }
    call(own);
    {
        // A root without ids: its call has no span, not even the outer one.
        let root = Span::root(SpanKind::Internal, c"root", SERVICE);
        let entered = root.enter();
        entered.set_thread_attributes(&attributes(0));
        call(0);
    }
    call(own);
}

fn hops(times: u64) {
    const AWAITS: u64 = 20;
    let tasks = 200 * times;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS as usize).build().unwrap();
    let task = |number: u64| {
        let work = async move {
            let own = number << 20 | 1;
            for step in 0..AWAITS {
                steps(own);
                tokio::task::yield_now().await;
                call(own);
                let inner = own + 2 * (step + 1);
                async move {
                    call(inner);
                    tokio::task::yield_now().await;
                    call(inner);
                }
                .instrument(span(inner))
                .with_thread_attributes(attributes(inner))
                .await;
                call(own);
            }
        };
        work.instrument(span(number << 20 | 1)).with_thread_attributes(attributes(number << 20 | 1))
    };
    runtime.block_on(async {
        let all: Vec<_> = (1..=tasks).map(|number| tokio::spawn(task(number))).collect();
        let others: Vec<_> = (1..=tasks)
            .map(|_| {
                tokio::spawn(async {
                    call(0);
                    tokio::task::yield_now().await;
                    call(0);
                })
            })
            .collect();
        for task in all.into_iter().chain(others) {
            task.await.unwrap();
        }
    });
}

/// A job: its span, the span's number, and how often it is passed on.
type Job = (Arc<Span>, u64, u32);

fn pool(times: u64) {
    let jobs = 2_000 * times;
    let (sender, receiver) = channel::<Job>();
    let receiver = Mutex::new(receiver);
    let open = AtomicU64::new(jobs);
    for job in 1..=jobs {
        let own = job << 20 | 1;
        sender.send((Arc::new(span(own)), own, 3)).unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| work(&receiver, &sender, &open));
        }
    });
}

fn work(jobs: &Mutex<Receiver<Job>>, sender: &Sender<Job>, open: &AtomicU64) {
    while open.load(Ordering::Relaxed) > 0 {
        let received = jobs.lock().unwrap().recv_timeout(Duration::from_millis(1));
        let Ok((span, own, left)) = received else { continue };
        {
            let entered = span.enter();
            entered.set_thread_attributes(&attributes(own));
            steps(own);
        }
        call(0);
        match left {
            0 => drop(open.fetch_sub(1, Ordering::Relaxed)),
            _ => sender.send((span, own, left - 1)).unwrap(),
        }
    }
}

/// A request as the application records it.
struct Order {
    context: SpanContext,
    begun_ns: u128,
    ended_ns: u128,
}

fn shop(zipkin: &str, collector: &str) {
    const ORDERS: u64 = 300;
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let path = std::env::args().nth(2).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    let trace_hi = now() as u64;
    let order = |number: u64| {
        let context = SpanContext { trace_hi, trace_lo: number, span: number, parent: 0, sampled: true };
        let begun_ns = now();
        {
            let _entered = ScopedSpan::continued(context, SpanKind::Server, c"GET /order", SERVICE);
            FILE.read_at(&mut [0], number).unwrap();
            file.write_at(&[1], number).unwrap();
            file.sync_data().unwrap();
        }
        let ended_ns = now();
        // A tracer finds the context some ms after it was published, and later on a machine without a free CPU.
        std::thread::sleep(Duration::from_millis(2));
        Order { context, begun_ns, ended_ns }
    };
    let orders: Vec<Order> = (1..=ORDERS).map(order).collect();
    let spans = orders.iter().map(|order| {
        let Order { context, begun_ns, ended_ns } = order;
        format!(
            r#"{{"traceId":"{:016x}{:016x}","id":"{:016x}","name":"get /order","kind":"SERVER","localEndpoint":{{"serviceName":"shop"}},"timestamp":{},"duration":{}}}"#,
            context.trace_hi, context.trace_lo, context.span, begun_ns / 1_000, (ended_ns - begun_ns) / 1_000
        )
    });
    post(format!("http://{zipkin}/api/v2/spans"), &format!("[{}]", spans.collect::<Vec<_>>().join(",")));
    let spans = orders.iter().map(|order| {
        let Order { context, begun_ns, ended_ns } = order;
        format!(
            r#"{{"traceId":"{:016x}{:016x}","spanId":"{:016x}","name":"get /order","kind":2,"startTimeUnixNano":"{begun_ns}","endTimeUnixNano":"{ended_ns}"}}"#,
            context.trace_hi, context.trace_lo, context.span
        )
    });
    let spans = spans.collect::<Vec<_>>().join(",");
    let service = r#"{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]}"#;
    let all =
        format!(r#"{{"resourceSpans":[{{"resource":{service},"scopeSpans":[{{"spans":[{spans}]}}]}}]}}"#);
    post(format!("http://{collector}/v1/traces"), &all);
}

fn post(url: String, body: &str) {
    let request = ureq::post(url).content_type("application/json");
    request.config().proxy(None).build().send(body).unwrap();
}
