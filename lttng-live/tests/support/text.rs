//! Format of an event as in babeltrace2's pretty printer.

use std::fmt::Write as _;

use blkkin_lttng_live::ctf::packet::Items;
use blkkin_lttng_live::ctf::plan::{FieldType, Item, Plan, Value};
use blkkin_lttng_live::event_view::EventView;

/// Fields of a packet context that babeltrace2 does not print.
const TAKEN: [&str; 6] =
    ["timestamp_begin", "timestamp_end", "content_size", "packet_size", "packet_seq_num", "events_discarded"];

pub(crate) fn line(view: &EventView<'_>) -> String {
    let (stream, class) = (view.stream(), view.class());
    let mut out = format!("timestamp = {:020}, name = {}", view.event.time, class.name);
    scope(&mut out, view, "stream.packet.context", stream.packet_context(), &view.header.context);
    scope(&mut out, view, "stream.event.context", stream.event_context.as_ref(), &view.event.stream_context);
    scope(&mut out, view, "event.context", class.context.as_ref(), &view.event.context);
    scope(&mut out, view, "event.fields", class.payload.as_ref(), &view.event.payload);
    out
}

fn scope(out: &mut String, view: &EventView<'_>, name: &str, plan: Option<&Plan>, items: &Items) {
    let Some(plan) = plan else { return };
    let mut printer = Printer { out, view, plan, items: &items.list, at: 0 };
    let _ = write!(printer.out, ", {name} = {{");
    let mut first = true;
    while printer.at < items.list.len() {
        let info = &plan.infos[printer.items[printer.at].info as usize];
        if name == "stream.packet.context" && TAKEN.contains(&&*info.name) {
            printer.at += 1;
            continue;
        }
        printer.out.push_str(if first { " " } else { ", " });
        first = false;
        let _ = write!(printer.out, "{} = ", info.name);
        printer.field();
    }
    printer.out.push_str(" }");
}

struct Printer<'p> {
    out: &'p mut String,
    view: &'p EventView<'p>,
    plan: &'p Plan,
    items: &'p [Item],
    at: usize,
}

impl Printer<'_> {
    fn field(&mut self) {
        let item = self.items[self.at];
        self.at += 1;
        match (&self.plan.infos[item.info as usize].field_type, item.value) {
            (FieldType::Int { base, bits, .. }, value) => number(self.out, value, *base, *bits),
            (FieldType::Enum { base, bits, labels, .. }, value) => {
                let at = match value {
                    Value::Unsigned(value) => i128::from(value),
                    Value::Signed(value) => i128::from(value),
                    other => panic!("an enumeration is {other:?}"),
                };
                let names: Vec<String> = labels
                    .iter()
                    .filter(|label| (label.low..=label.high).contains(&at))
                    .map(|label| quoted(label.name.as_bytes()))
                    .collect();
                let names = if names.is_empty() { "<unknown>".to_owned() } else { names.join(", ") };
                let _ = write!(self.out, "( {names} : container = ");
                number(self.out, value, *base, *bits);
                self.out.push_str(" )");
            }
            (FieldType::Float(_), Value::Float(value)) => self.out.push_str(&general(value)),
            (FieldType::Text, Value::Text { at, length }) => {
                let text = quoted(self.view.bytes(at, length));
                self.out.push_str(&text);
            }
            (FieldType::Struct, Value::Begin(_)) => self.parts("{", " }", |name, _| format!("{name} = ")),
            (FieldType::Variant, Value::Begin(_)) => self.parts("{", " }", |_, _| String::new()),
            (FieldType::Array | FieldType::Sequence, Value::Begin(_)) => {
                self.parts("[", " ]", |_, index| format!("[{index}] = "));
            }
            (field_type, value) => panic!("{field_type:?} is {value:?}"),
        }
    }

    fn parts(&mut self, open: &str, close: &str, label: fn(&str, usize) -> String) {
        self.out.push_str(open);
        let mut index = 0;
        while self.items[self.at].value != Value::End {
            let name = &self.plan.infos[self.items[self.at].info as usize].name;
            self.out.push_str(if index == 0 { " " } else { ", " });
            self.out.push_str(&label(name, index));
            self.field();
            index += 1;
        }
        self.at += 1;
        self.out.push_str(close);
    }
}

fn number(out: &mut String, value: Value, base: u8, bits: u32) {
    let raw = match value {
        Value::Unsigned(value) => value,
        Value::Signed(value) => value as u64,
        other => panic!("a number is {other:?}"),
    };
    let _ = match (base, value) {
        (16, _) => write!(out, "0x{raw:X}"),
        (8, _) => write!(out, "0{raw:o}"),
        (2, _) => write!(out, "0b{raw:0width$b}", width = bits as usize),
        (_, Value::Signed(value)) => write!(out, "{value}"),
        _ => write!(out, "{raw}"),
    };
}

fn quoted(bytes: &[u8]) -> String {
    let mut out = vec![b'"'];
    for &byte in bytes {
        match byte {
            b'\\' | b'\'' | b'"' | b'?' => out.extend([b'\\', byte]),
            b'\t' => out.extend(b"\\t"),
            b'\n' => out.extend(b"\\n"),
            0..0x20 | 0x7f => out.extend(format!("\\x{byte:02x}").bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
    String::from_utf8_lossy(&out).into_owned()
}

/// Formats a number like C's `%g`.
fn general(value: f64) -> String {
    if value == 0.0 {
        return if value.is_sign_negative() { "-0".to_owned() } else { "0".to_owned() };
    }
    let scientific = format!("{value:.5e}");
    let (digits, exponent) = scientific.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        trim(&format!("{value:.*}", (5 - exponent) as usize))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(digits), exponent.abs())
    }
}
