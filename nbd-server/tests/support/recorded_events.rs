//! Recorded events, as the bridge decodes them: an LTTng event that carries several gives each of
//! them.

use std::path::Path;

use blkkin_ust_bridge::facts::{Fact, Kind, Side, Where};
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_ust_bridge::stored::Stored;

use crate::lttng::Event;

/// Reads all events in order of time, and the number of LTTng events that carried them.
pub(crate) fn read(folder: &Path) -> (Vec<Event>, usize) {
    let mut stored = Stored::open(folder).unwrap();
    let mut mapper = Mapper::new(Mapping::built_in());
    let (mut events, mut lttng_events) = (Vec::new(), 0);
    while let Some(view) = stored.next_event() {
        lttng_events += 1;
        mapper.map(&view, &mut |at, fact| events.push(event(at, &fact)));
    }
    assert!(stored.troubles.is_empty(), "{:?}", stored.troubles);
    assert_eq!((mapper.counts.ignored, mapper.counts.not_understood), (0, 0));
    (events, lttng_events)
}

fn event(at: &Where<'_>, fact: &Fact<'_>) -> Event {
    let (name, payload) = match fact {
        Fact::Begin { span, parent, kind, on, name, service, .. } => {
            let kind = [Kind::Internal, Kind::Server, Kind::Client].iter().position(|one| one == kind);
            let (kind, on) = (kind.unwrap(), u8::from(*on));
            let fields = format!("span = {span}, parent = {parent}, kind = {kind}, on = {on}");
            ("begin", format!("{fields}, name = \"{name}\", service = \"{service}\""))
        }
        Fact::End { span, status } => ("end", format!("span = {span}, status = {status}")),
        Fact::Enter { span } => ("enter", format!("span = {span}")),
        Fact::Leave { span } => ("leave", format!("span = {span}")),
        Fact::Event { span, name } => ("event", format!("span = {span}, name = \"{name}\"")),
        Fact::Text { span, key, value } => {
            ("text", format!("span = {span}, key = \"{key}\", val = \"{value}\""))
        }
        Fact::Number { span, key, value } => {
            ("number", format!("span = {span}, key = \"{key}\", val = {value}"))
        }
        Fact::Meeting { span, side, unique, rule, connection, cookie } => {
            let (side, unique) = (u8::from(*side == Side::Answered), u8::from(*unique));
            let fields = format!("span = {span}, side = {side}, unique = {unique}, rule = \"{rule}\"");
            ("meeting", format!("{fields}, connection = \"{connection}\", cookie = {cookie}"))
        }
    };
    let (name, payload) = (format!("blkkin:{name}"), format!("{{ {payload} }}"));
    Event { name, payload, vpid: at.vpid, vtid: at.vtid }
}
