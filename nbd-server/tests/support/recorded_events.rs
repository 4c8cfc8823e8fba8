//! Recorded events, as the bridge decodes them: an LTTng event that carries several gives each of
//! them.

use std::path::Path;

use blkkin_lttng_live::trace_folder::TraceFolder;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_ust_bridge::span_event::{EventOrigin, RpcSide, SpanEvent, SpanKind};

use crate::lttng::Event;

/// Reads all events in order of time, and the number of LTTng events that carried them.
pub(crate) fn read(folder: &Path) -> (Vec<Event>, usize) {
    let mut recorded = TraceFolder::open(folder).unwrap();
    let mut mapper = Mapper::new(Mapping::built_in());
    let (mut events, mut lttng_events) = (Vec::new(), 0);
    while let Some(view) = recorded.next_event() {
        lttng_events += 1;
        mapper.map(&view, &mut |origin, span_event| events.push(event(origin, &span_event)));
    }
    assert!(recorded.problems.is_empty(), "{:?}", recorded.problems);
    assert_eq!((mapper.stats.ignored, mapper.stats.not_understood), (0, 0));
    (events, lttng_events)
}

fn event(origin: &EventOrigin<'_>, span_event: &SpanEvent<'_>) -> Event {
    let (name, payload) = match span_event {
        SpanEvent::Begin { span, parent, kind, enter, name, service, .. } => {
            let kind =
                [SpanKind::Local, SpanKind::Server, SpanKind::Client].iter().position(|one| one == kind);
            let (kind, on) = (kind.unwrap(), u8::from(*enter));
            let fields = format!("span = {span}, parent = {parent}, kind = {kind}, on = {on}");
            ("begin", format!("{fields}, name = \"{name}\", service = \"{service}\""))
        }
        SpanEvent::End { span, status } => ("end", format!("span = {span}, status = {status}")),
        SpanEvent::Enter { span } => ("enter", format!("span = {span}")),
        SpanEvent::Leave { span } => ("leave", format!("span = {span}")),
        SpanEvent::Event { span, name } => ("event", format!("span = {span}, name = \"{name}\"")),
        SpanEvent::Text { span, key, value } => {
            ("text", format!("span = {span}, key = \"{key}\", val = \"{value}\""))
        }
        SpanEvent::Number { span, key, value } => {
            ("number", format!("span = {span}, key = \"{key}\", val = {value}"))
        }
        SpanEvent::RpcEndpoint { span, side, unique, protocol, connection, cookie } => {
            let (side, unique) = (u8::from(*side == RpcSide::Server), u8::from(*unique));
            let fields =
                format!("span = {span}, side = {side}, unique = {unique}, protocol = \"{protocol}\"");
            ("rpc_endpoint", format!("{fields}, connection = \"{connection}\", cookie = {cookie}"))
        }
    };
    let (name, payload) = (format!("blkkin:{name}"), format!("{{ {payload} }}"));
    Event { name, payload, vpid: origin.vpid, vtid: origin.vtid }
}
