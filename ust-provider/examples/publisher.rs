//! A program whose system calls say for which span they are made: each reads a byte at the offset that is the span's id, and at 0 for
//! none. So whoever traces it can be judged, call by call; blkkin's tests do.
//!
//! `publisher hops|pool FILE GO [TIMES]`: reads FILE, for one span until the file GO is there, and then in earnest: as tasks that hop between
//! threads at each await, or by a pool of threads that hands its jobs on. The spans are somebody else's who asked for the work, so they
//! need no LTTng. Of each span its threads say its number besides, under `work.number`. At the end it prints how many calls it made below spans, and how many below none.
//!
//! `publisher shop FILE ZIPKIN COLLECTOR`: an application that answers requests, and exports its spans itself: as JSON to a Zipkin and, by
//! OTLP, to a collector, each `HOST:PORT`. For each request it reads a byte, writes one and makes that durable.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it fails by panicking, and says what it did")]

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blkkin_ust::{Instrument, ScopedSpan, Span, SpanContext, SpanKind, ThreadAttributes, ThreadKey};

const SERVICE: &CStr = c"publisher";
/// Below this one there are calls until whoever traces is ready. It is not counted.
const AWAITED: u64 = 1 << 40;
const THREADS: u64 = 4;

static FILE: LazyLock<File> = LazyLock::new(|| File::open(std::env::args().nth(2).expect("a file")).unwrap());
static NUMBER: LazyLock<ThreadKey> = LazyLock::new(|| blkkin_ust::thread_key("work.number").unwrap());
static BELOW: AtomicU64 = AtomicU64::new(0);
static BELOW_NONE: AtomicU64 = AtomicU64::new(0);

fn main() {
    // It says why nobody traces: what is published does not depend on that.
    let _ = blkkin_ust::init();
    blkkin_ust::publishing().unwrap();
    blkkin_ust::publish_process(&[("service.name", "publisher"), ("service.instance.id", "one")]).unwrap();
    // Its name, before anything is said under it.
    LazyLock::force(&NUMBER);
    let words: Vec<String> = std::env::args().collect();
    if words[1] == "shop" {
        return shop(&words[3], &words[4]);
    }
    await_go(Path::new(&words[3]));
    let times = words.get(4).map_or(1, |times| times.parse().unwrap());
    match &*words[1] {
        "hops" => hops(times),
        "pool" => pool(times),
        _ => panic!("hops or pool"),
    }
    call(0);
    println!("below {} none {}", BELOW.load(Ordering::Relaxed), BELOW_NONE.load(Ordering::Relaxed));
}

/// The context of a span, as who judges knows it: its number and its complement are its trace.
fn context(span: u64) -> SpanContext {
    SpanContext { trace_hi: !span, trace_lo: span, span, parent: 0, sampled: span % 2 == 1 }
}

fn span(number: u64) -> Span {
    Span::continued(context(number), SpanKind::Server, c"work", SERVICE)
}

fn said(number: u64) -> ThreadAttributes {
    ThreadAttributes::new().with(*NUMBER, &number.to_string())
}

fn call(span: u64) {
    let counter = if span == 0 { &BELOW_NONE } else { &BELOW };
    counter.fetch_add(u64::from(span != AWAITED), Ordering::Relaxed);
    FILE.read_at(&mut [0], span).unwrap();
}

fn await_go(go: &Path) {
    let span = span(AWAITED);
    let _working = span.enter();
    while !go.exists() {
        call(AWAITED);
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// What is done in one go: nothing is awaited inside.
fn steps(own: u64) {
    call(own);
    {
        let here = ScopedSpan::continued(context(own + 1), SpanKind::Internal, c"here", SERVICE);
        here.set_thread_attributes(&said(own + 1));
        call(own + 1);
        // Not recorded: it carries the span around it on, and says nothing by itself.
        let below = ScopedSpan::child(&here, SpanKind::Internal, c"below");
        below.set_thread_attributes(&said(own + 1));
        call(own + 1);
    }
    call(own);
    {
        // Of nobody's asking, so below none: neither below what is around it.
        let root = Span::root(SpanKind::Internal, c"root", SERVICE);
        let working = root.enter();
        working.set_thread_attributes(&said(0));
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
                .with_thread_attributes(said(inner))
                .await;
                call(own);
            }
        };
        work.instrument(span(number << 20 | 1)).with_thread_attributes(said(number << 20 | 1))
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

/// A job: its span, and how often it is handed on.
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

fn work(jobs: &Mutex<Receiver<Job>>, again: &Sender<Job>, open: &AtomicU64) {
    while open.load(Ordering::Relaxed) > 0 {
        let taken = jobs.lock().unwrap().recv_timeout(Duration::from_millis(1));
        let Ok((span, own, left)) = taken else { continue };
        {
            let working = span.enter();
            working.set_thread_attributes(&said(own));
            steps(own);
        }
        call(0);
        match left {
            0 => drop(open.fetch_sub(1, Ordering::Relaxed)),
            _ => again.send((span, own, left - 1)).unwrap(),
        }
    }
}

/// What the application knows of one request.
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
            let _working = ScopedSpan::continued(context, SpanKind::Server, c"GET /order", SERVICE);
            FILE.read_at(&mut [0], number).unwrap();
            file.write_at(&[1], number).unwrap();
            file.sync_data().unwrap();
        }
        Order { context, begun_ns, ended_ns: now() }
    };
    let orders: Vec<Order> = (1..=ORDERS).map(order).collect();
    let spans = orders.iter().map(|order| {
        let Order { context, begun_ns, ended_ns } = order;
        format!(
            r#"{{"traceId":"{:016x}{:016x}","id":"{:016x}","name":"get /order","kind":"SERVER","localEndpoint":{{"serviceName":"shop"}},"timestamp":{},"duration":{}}}"#,
            context.trace_hi, context.trace_lo, context.span, begun_ns / 1_000, (ended_ns - begun_ns) / 1_000
        )
    });
    post(zipkin, "/api/v2/spans", &format!("[{}]", spans.collect::<Vec<_>>().join(",")));
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
    post(collector, "/v1/traces", &all);
}

fn post(to: &str, path: &str, body: &str) {
    let mut stream = TcpStream::connect(to).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&answer));
}
