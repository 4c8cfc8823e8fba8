//! Events of instrumented daemons, mapped to span events: blkkin's own, several of them in one
//! event, and a query with a `traceparent`. The input is a packet of the metadata in `span_events.tsdl`.
#![no_main]

use std::sync::LazyLock;

use blkkin_fuzz::fuzz_target;
use blkkin_lttng_live::ctf::metadata::CtfTrace;
use blkkin_lttng_live::ctf::packet::{CounterBaseline, Decoder, Event};
use blkkin_lttng_live::event_view::EventView;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;

static TRACE: LazyLock<CtfTrace> =
    LazyLock::new(|| CtfTrace::read(include_bytes!("span_events.tsdl")).expect("the metadata is valid"));

static MAPPING: LazyLock<Mapping> =
    LazyLock::new(|| Mapping::built_in().chain(Mapping::read(RULES).expect("the rules are valid")));

/// Rules for the events of another provider.
const RULES: &str = r#"
[[rule]]
event = "fuzz:query"
is = "begin"
key = ["id"]
scope = "thread"
group = "query"
name = "query"
service = "fuzz"
traceparent = "query"
annotate = { "db.statement" = "query" }

[[rule]]
event = "fuzz:done"
is = "end"
key = ["id"]
scope = "thread"
group = "query"
status_from = "error"
"#;

fuzz_target!(|packet: &[u8]| {
    let (mut mapper, mut span_events, mut events) = (Mapper::new(MAPPING.clone()), 0, 0);
    let (mut decoder, mut event) = (Decoder::new(CounterBaseline::Zero), Event::default());
    let Ok((header, mut position)) = decoder.open(&TRACE, packet) else { return };
    while let Ok(true) = decoder.next(&TRACE, packet, &mut position, &mut event) {
        let view = EventView {
            user: 0,
            trace: &TRACE,
            trace_index: 0,
            stream_index: 0,
            header: &header,
            packet,
            event: &event,
            time_ns: event.time as i64,
            gap: None,
        };
        mapper.map(&view, &mut |_, _| span_events += 1);
        events += 1;
    }
    assert_eq!(mapper.take_bind_errors().count(), 0, "every rule matches the metadata");
    assert!(span_events <= packet.len() && events <= packet.len());
});
