//! Decoder of batch events, by the table in the crate's README: one line per item, as babeltrace2
//! prints separate events.

use std::collections::HashMap;

use super::Event;

/// Returns the lines of all events, in order.
pub(crate) fn lines(events: &[Event]) -> Vec<String> {
    let mut lines = Vec::new();
    for event in events {
        match event.name.as_str() {
            "blkkin:together" => read(&words(&event.payload), &mut lines),
            "blkkin:turn" => {
                lines.push(format!("blkkin:leave {{ span = {} }}", event.number("left")));
                lines.push(format!("blkkin:enter {{ span = {} }}", event.number("span")));
            }
            _ => lines.push(event.line()),
        }
    }
    lines
}

/// Parses `… words = [ [0] = 1, [1] = 2 ] }`.
fn words(payload: &str) -> Vec<u64> {
    let list = payload.split(" words = [ ").nth(1).unwrap();
    list.split("] = ").skip(1).map(|word| word.split([',', ' ']).next().unwrap().parse().unwrap()).collect()
}

fn read(words: &[u64], lines: &mut Vec<String>) {
    let (mut names, mut span, mut rest) = (HashMap::new(), 0, words.iter().copied());
    while let Some(head) = rest.next() {
        let mut word = || rest.next().unwrap();
        let byte = |from: u32| head >> from & 0xff;
        let name = |from: u32| -> &String { &names[&byte(from)] };
        lines.push(match head & 0xff {
            1 => {
                let length = (head >> 16 & 0xffff) as usize;
                let bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| word().to_le_bytes()).collect();
                names.insert(byte(8), String::from_utf8(bytes[..length].to_vec()).unwrap());
                continue;
            }
            2 => {
                span = word();
                let lo = if byte(12) & 4 == 0 { word() } else { span };
                let hi = if byte(12) & 1 != 0 { word() } else { 0 };
                let parent = if byte(12) & 2 != 0 { word() } else { 0 };
                format!(
                    "blkkin:begin {{ trace_hi = {hi}, trace_lo = {lo}, span = {span}, parent = {parent}, kind = {}, on = 0, \
                     kept_per_million = {}, name = \"{}\", service = \"{}\" }}",
                    byte(8) & 0xf,
                    head >> 32,
                    name(16),
                    name(24)
                )
            }
            3 => {
                span = word();
                continue;
            }
            4 => format!("blkkin:number {{ span = {span}, key = \"{}\", val = {} }}", name(8), word() as i64),
            5 => format!("blkkin:text {{ span = {span}, key = \"{}\", val = \"{}\" }}", name(8), name(16)),
            6 => format!("blkkin:event {{ span = {span}, name = \"{}\" }}", name(8)),
            7 => format!(
                "blkkin:meeting {{ span = {span}, side = {}, unique = {}, rule = \"{}\", connection = \"{}\", cookie = {} }}",
                byte(8) & 1,
                byte(8) >> 1 & 1,
                name(16),
                name(24),
                if byte(8) & 4 == 0 { word() } else { head >> 32 }
            ),
            8 => format!("blkkin:end {{ span = {}, status = {} }}", word(), (head >> 32) as i32),
            9 => format!("blkkin:number {{ span = {span}, key = \"{}\", val = {} }}", name(8), head as i64 >> 16),
            10 => {
                lines.extend((0..head >> 8).map(|_| format!("blkkin:end {{ span = {}, status = 0 }}", word())));
                continue;
            }
            other => panic!("{other}"),
        });
    }
}
