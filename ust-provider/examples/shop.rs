//! A service that exports its own spans to a Zipkin: one per order, with a child for each step.
//! blkkin does not know these spans, nor the service those of blkkin. Both join because the
//! service's thread publishes its current span.
//!
//! `shop STOCK ORDERS HOST:PORT COUNT`: handles COUNT orders. Each one looks up an item in the file
//! STOCK, and is written to the file ORDERS and synced to the disk.

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use blkkin_ust::{ScopedSpan, SpanContext, SpanKind};

const SERVICE: &CStr = c"shop";
const PAGE: u64 = 4096;

fn main() {
    // The error is ignored: thread contexts are published without LTTng too.
    let _ = blkkin_ust::init();
    blkkin_ust::publishing().unwrap();
    blkkin_ust::publish_process(&[("service.name", "shop"), ("service.instance.id", "one")]).unwrap();
    let args: Vec<String> = std::env::args().collect();
    let stock = File::open(&args[1]).unwrap();
    let orders = File::create(&args[2]).unwrap();
    let items = stock.metadata().unwrap().len() / PAGE;
    let count: u64 = args[4].parse().unwrap();
    let mut tracer = Tracer::new();
    for number in 0..count {
        let item = tracer.id() % items;
        tracer.span(None, SpanKind::Server, c"POST /orders", |tracer, order| {
            let mut found = [0; PAGE as usize];
            tracer.span(Some(order), SpanKind::Internal, c"find item", |_, _| {
                stock.read_exact_at(&mut found, item * PAGE).unwrap();
            });
            tracer.span(Some(order), SpanKind::Internal, c"save order", |_, _| {
                orders.write_all_at(&found, number * PAGE).unwrap();
                orders.sync_data().unwrap();
            });
        });
    }
    tracer.export(&args[3]);
}

/// A minimal tracing library.
struct Tracer {
    ids: u64,
    /// Finished spans, as Zipkin v2 JSON.
    done: Vec<String>,
}

impl Tracer {
    fn new() -> Tracer {
        Tracer { ids: now_us() as u64, done: Vec::new() }
    }

    /// Returns a new id (SplitMix64).
    fn id(&mut self) -> u64 {
        self.ids = self.ids.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.ids ^ (self.ids >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).max(1)
    }

    /// Runs `work` in a new span, a child of `parent`.
    fn span(
        &mut self,
        parent: Option<SpanContext>,
        kind: SpanKind,
        name: &'static CStr,
        work: impl FnOnce(&mut Tracer, SpanContext),
    ) {
        let context = match parent {
            Some(parent) => SpanContext { span: self.id(), parent: parent.span, ..parent },
            None => {
                let [trace_hi, trace_lo, span] = [self.id(), self.id(), self.id()];
                SpanContext { trace_hi, trace_lo, span, parent: 0, sampled: true }
            }
        };
        let begun = now_us();
        {
            // The span is current on this thread until the end of the block.
            let _scoped = ScopedSpan::continued(context, kind, name, SERVICE);
            work(self, context);
        }
        let SpanContext { trace_hi, trace_lo, span, parent, .. } = context;
        let parent = if parent == 0 { String::new() } else { format!(r#""parentId":"{parent:016x}","#) };
        let kind = if matches!(kind, SpanKind::Server) { r#""kind":"SERVER","# } else { "" };
        let (name, took) = (name.to_str().unwrap(), (now_us() - begun).max(1));
        self.done.push(format!(
            r#"{{"traceId":"{trace_hi:016x}{trace_lo:016x}","id":"{span:016x}",{parent}{kind}"name":"{name}","localEndpoint":{{"serviceName":"shop"}},"timestamp":{begun},"duration":{took}}}"#
        ));
    }

    fn export(&self, to: &str) {
        let body = format!("[{}]", self.done.join(","));
        let request = ureq::post(format!("http://{to}/api/v2/spans")).content_type("application/json");
        request.config().proxy(None).build().send(body).unwrap();
    }
}

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}
