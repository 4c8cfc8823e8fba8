//! A service that traces itself: for each order a span with one for each of its steps, which it exports to a Zipkin. blkkin knows nothing of
//! these, and the service nothing of blkkin's: they meet because its thread publishes which span it works for.
//!
//! `shop STOCK ORDERS HOST:PORT COUNT`: takes so many orders. Each looks an item up in the file STOCK and is saved, durably, in the file ORDERS.

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use blkkin_ust::{ScopedSpan, SpanContext, SpanKind};

const SERVICE: &CStr = c"shop";
const PAGE: u64 = 4096;

fn main() {
    // Whether anybody traces by LTTng does not matter here.
    let _ = blkkin_ust::init();
    blkkin_ust::publishing().unwrap();
    blkkin_ust::publish_process(&[("service.name", "shop"), ("service.instance.id", "one")]).unwrap();
    let words: Vec<String> = std::env::args().collect();
    let stock = File::open(&words[1]).unwrap();
    let orders = File::create(&words[2]).unwrap();
    let items = stock.metadata().unwrap().len() / PAGE;
    let count: u64 = words[4].parse().unwrap();
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
    tracer.export(&words[3]);
}

/// A tracing library, as small as one can be.
struct Tracer {
    ids: u64,
    /// In JSON, as Zipkin takes them.
    done: Vec<String>,
}

impl Tracer {
    fn new() -> Tracer {
        Tracer { ids: now_us() as u64, done: Vec::new() }
    }

    /// Another one each time (SplitMix64).
    fn id(&mut self) -> u64 {
        self.ids = self.ids.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.ids ^ (self.ids >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).max(1)
    }

    /// Does `work` in a span of its own, below `parent`.
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
            // From here to the end of the block this thread says that it works for it.
            let _working = ScopedSpan::continued(context, kind, name, SERVICE);
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
        let mut stream = TcpStream::connect(to).unwrap();
        let head = format!(
            "POST /api/v2/spans HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&answer));
    }
}

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}
