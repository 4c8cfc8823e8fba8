//! Blocks of the metadata: `trace`, `env`, `clock`, `stream` and `event`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::parser::{Block, BlockValue};
use super::super::plan::Plan;
use super::super::resolve::{Resolver, Root};
use super::super::types::ByteOrder;
use super::{CtfClock, CtfTrace, EventClass, StreamClass};

impl CtfTrace {
    pub(super) fn block(&mut self, keyword: &str, block: &Block) -> Result<(), String> {
        match keyword {
            "trace" => self.trace_block(block),
            "env" => {
                self.env.extend(block.iter().map(|(key, value)| (key.clone(), as_text(value))));
                Ok(())
            }
            "clock" => self.clock_block(block),
            "stream" => self.stream_block(block),
            "event" => self.event_block(block),
            // Source locations of events, which decoding does not need.
            _ => Ok(()),
        }
    }

    fn trace_block(&mut self, block: &Block) -> Result<(), String> {
        if self.order.is_some() {
            return Err("duplicate `trace` block".to_owned());
        }
        if let Some(major) = number(block, "major")?
            && major != 1
        {
            return Err(format!("CTF {major} is not supported, only 1.8"));
        }
        let order = match text(block, "byte_order").as_deref() {
            Some("le") => ByteOrder::Little,
            Some("be" | "network") => ByteOrder::Big,
            other => return Err(format!("the trace's byte_order is {other:?} instead of `le` or `be`")),
        };
        self.uuid = uuid(block)?;
        self.resolver = Resolver::new(order);
        self.packet_header = plan(&mut self.resolver, block, "packet.header", Root::PacketHeader)?;
        self.order = Some(order);
        Ok(())
    }

    fn clock_block(&mut self, block: &Block) -> Result<(), String> {
        let name = text(block, "name").ok_or("a clock has no name")?;
        if self.clock(&name).is_some() {
            return Err(format!("duplicate clock `{name}`"));
        }
        let signed = |key| number(block, key).and_then(|found| narrow::<i64>(found.unwrap_or(0), key));
        let unsigned =
            |key, default| number(block, key).and_then(|found| narrow::<u64>(found.unwrap_or(default), key));
        let clock = CtfClock {
            uuid: uuid(block)?,
            description: text(block, "description").unwrap_or_default(),
            frequency: unsigned("freq", 1_000_000_000)?,
            precision: unsigned("precision", 1)?,
            offset_s: signed("offset_s")?,
            offset: signed("offset")?,
            name,
        };
        if clock.frequency == 0 {
            return Err(format!("the clock `{}` has the frequency 0", clock.name));
        }
        self.clocks.push(clock);
        Ok(())
    }

    fn stream_block(&mut self, block: &Block) -> Result<(), String> {
        if self.order.is_none() {
            return Err("a stream is declared before the `trace` block".to_owned());
        }
        let id = narrow(number(block, "id")?.unwrap_or(0), "id")?;
        if self.stream_index(Some(id)).is_some() {
            return Err(format!("duplicate stream {id}"));
        }
        let mut resolver = self.resolver.clone();
        let packet_context = plan(&mut resolver, block, "packet.context", Root::PacketContext)?;
        let event_header = plan(&mut resolver, block, "event.header", Root::EventHeader)?;
        let event_context = plan(&mut resolver, block, "event.context", Root::StreamContext)?;
        let clock = resolver.clock.clone();
        if let Some(name) = &clock
            && self.clock(name).is_none()
        {
            return Err(format!("stream {id} uses the clock `{name}`, which is not declared"));
        }
        let (events, by_id) = (Vec::new(), BTreeMap::new());
        let mut stream =
            StreamClass { id, packet_context, event_header, event_context, clock, events, by_id, resolver };
        for (_, event) in self.events_before_stream.extract_if(.., |(of, _)| *of == id) {
            declare(&mut stream, &event)?;
        }
        self.streams.push(stream);
        Ok(())
    }

    fn event_block(&mut self, block: &Block) -> Result<(), String> {
        let stream_id = narrow(number(block, "stream_id")?.unwrap_or(0), "stream_id")?;
        match self.stream_index(Some(stream_id)) {
            Some(index) => declare(&mut self.streams[index], block),
            // LTTng-UST 2.13 declares events of a starting program before their stream.
            None => {
                self.events_before_stream.push((stream_id, block.clone()));
                Ok(())
            }
        }
    }
}

/// Adds an event to its class of streams.
fn declare(stream: &mut StreamClass, block: &Block) -> Result<(), String> {
    let name = text(block, "name").ok_or("an event has no name")?;
    let id = narrow(number(block, "id")?.unwrap_or(0), "id")?;
    if stream.by_id.contains_key(&id) {
        return Err(format!("duplicate event {id} in stream {}", stream.id));
    }
    let mut resolver = stream.resolver.clone();
    let context = plan(&mut resolver, block, "context", Root::EventContext)?;
    let payload = plan(&mut resolver, block, "fields", Root::Fields)?;
    let index = stream.events.len() as u32;
    stream.events.push(EventClass { id, index, name: Arc::from(name), context, payload });
    stream.by_id.insert(id, index);
    Ok(())
}

fn find<'b>(block: &'b Block, key: &str) -> Option<&'b BlockValue> {
    block.iter().find(|(known, _)| known == key).map(|(_, value)| value)
}

fn as_text(value: &BlockValue) -> String {
    match value {
        BlockValue::Word(word) | BlockValue::Text(word) => word.clone(),
        BlockValue::Number(number) => number.to_string(),
        BlockValue::Type(_) => String::new(),
    }
}

fn text(block: &Block, key: &str) -> Option<String> {
    find(block, key).map(as_text)
}

fn number(block: &Block, key: &str) -> Result<Option<i128>, String> {
    match find(block, key) {
        None => Ok(None),
        Some(BlockValue::Number(number)) => Ok(Some(*number)),
        Some(_) => Err(format!("`{key}` is not a number")),
    }
}

fn narrow<T: TryFrom<i128>>(number: i128, key: &str) -> Result<T, String> {
    T::try_from(number).map_err(|_| format!("`{key}` is {number}, which is out of range"))
}

fn plan(resolver: &mut Resolver, block: &Block, key: &str, root: Root) -> Result<Option<Plan>, String> {
    match find(block, key) {
        None => Ok(None),
        Some(BlockValue::Type(of)) => resolver.plan(root, of).map(Some),
        Some(_) => Err(format!("`{key}` is not a type")),
    }
}

fn uuid(block: &Block) -> Result<Option<[u8; 16]>, String> {
    let Some(written) = text(block, "uuid") else { return Ok(None) };
    let digits: String = written.chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
    number.map(|number| Some(number.to_be_bytes())).ok_or_else(|| format!("{written:?} is not a UUID"))
}
