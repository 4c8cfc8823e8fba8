//! What was recorded as the bridge understands it: one event for each thing that was said, also where several came in one.

use std::path::Path;

use blkkin_ust_bridge::facts::{Fact, Kind, Side, Where};
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_ust_bridge::stored::Stored;

use crate::lttng::Event;

/// All of them, in order of time, and how many events of LTTng's they came in.
pub(crate) fn read(folder: &Path) -> (Vec<Event>, usize) {
    let mut stored = Stored::open(folder).unwrap();
    let mut mapper = Mapper::new(Mapping::built_in());
    let (mut all, mut events) = (Vec::new(), 0);
    while let Some(view) = stored.next_event() {
        events += 1;
        mapper.map(&view, &mut |at, fact| all.push(event(at, &fact)));
    }
    assert!(stored.troubles.is_empty(), "{:?}", stored.troubles);
    assert_eq!((mapper.counts.ignored, mapper.counts.not_understood), (0, 0));
    (all, events)
}

fn event(at: &Where<'_>, fact: &Fact<'_>) -> Event {
    let (name, payload) = match fact {
        Fact::Begin { span, parent, kind, on, name, service, .. } => {
            let kind = [Kind::Internal, Kind::Server, Kind::Client].iter().position(|one| one == kind);
            let (kind, on) = (kind.unwrap(), u8::from(*on));
            let words = format!("span = {span}, parent = {parent}, kind = {kind}, on = {on}");
            ("begin", format!("{words}, name = \"{name}\", service = \"{service}\""))
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
            let words = format!("span = {span}, side = {side}, unique = {unique}, rule = \"{rule}\"");
            ("meeting", format!("{words}, connection = \"{connection}\", cookie = {cookie}"))
        }
    };
    let (name, payload) = (format!("blkkin:{name}"), format!("{{ {payload} }}"));
    Event { name, payload, vpid: at.vpid, vtid: at.vtid }
}
