//! Synthetic traces with random types and values, written bit by bit according to the
//! specification.
//!
//! The writer is independent of the reader, and its only output is CTF. babeltrace2 reads the same
//! traces.

use std::fmt::Write as _;
use std::path::Path;

/// Random numbers from a seed (xorshift64*, the same on every machine).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// Bit writer in the order of CTF.
#[derive(Default)]
pub(crate) struct Bits {
    pub(crate) bytes: Vec<u8>,
    pub(crate) at: usize,
}

impl Bits {
    pub(crate) fn align(&mut self, align: usize) {
        self.at = self.at.div_ceil(align) * align;
        self.grow();
    }

    fn grow(&mut self) {
        self.bytes.resize(self.bytes.len().max(self.at.div_ceil(8)), 0);
    }

    pub(crate) fn put(&mut self, value: u64, bits: usize, big: bool) {
        for n in 0..bits {
            let at = self.at + n;
            self.bytes.resize(self.bytes.len().max(at / 8 + 1), 0);
            let (bit, place) = if big { (bits - 1 - n, 7 - at % 8) } else { (n, at % 8) };
            self.bytes[at / 8] |= ((value >> bit & 1) as u8) << place;
        }
        self.at += bits;
    }

    fn set(&mut self, at: usize, value: u64, bits: usize, big: bool) {
        let here = std::mem::replace(&mut self.at, at);
        self.bytes[at / 8..(at + bits) / 8].fill(0);
        self.put(value, bits, big);
        self.at = here;
    }
}

/// Type of a field, for writing values.
enum Shape {
    Int { bits: usize, align: usize, big: bool },
    Label { bits: usize, align: usize, big: bool, last: u64 },
    Float { bits: usize, big: bool },
    Text,
    Struct { align: usize, fields: Vec<Shape> },
    Variant { options: Vec<Shape> },
    Array { align: usize, length: u64, element: Box<Shape> },
    TextArray(u64),
    Sequence { align: usize, element: Box<Shape> },
}

fn align_of(shape: &Shape) -> usize {
    match shape {
        Shape::Int { align, .. } | Shape::Label { align, .. } => *align,
        Shape::Float { .. } | Shape::Text | Shape::TextArray(_) => 8,
        Shape::Struct { align, .. } => *align,
        Shape::Variant { .. } => 1,
        Shape::Array { align, .. } | Shape::Sequence { align, .. } => *align,
    }
}

/// Generator of types and their TSDL declarations.
struct Maker<'d> {
    dice: &'d mut Dice,
    big: bool,
    names: u32,
}

impl Maker<'_> {
    fn name(&mut self) -> String {
        self.names += 1;
        // Names with and without LTTng's prefix `_`.
        format!("{}f{}", if self.names.is_multiple_of(3) { "_" } else { "" }, self.names)
    }

    fn int(&mut self, signed: bool, extra: &str) -> (Shape, String) {
        let bits = if self.dice.flip() { 8 << self.dice.below(4) } else { 1 + self.dice.below(64) } as usize;
        let align = [1, 1, 2, 4, 8, 8, 16, 32, 64][self.dice.below(9) as usize];
        // The byte order can change only between bytes.
        let swapped = self.dice.below(4) == 0 && bits.is_multiple_of(8);
        let align = if swapped { align.max(8) } else { align };
        let big = self.big != swapped;
        let order = if swapped { if big { "byte_order = be; " } else { "byte_order = le; " } } else { "" };
        let base = if signed { 10 } else { [10, 10, 16, 8, 2][self.dice.below(5) as usize] };
        // babeltrace2 2.0.4 prints 0 for 61 to 63 bits in base 16.
        let base = if base == 16 && (61..64).contains(&bits) { 10 } else { base };
        let text = format!(
            "integer {{ size = {bits}; align = {align}; signed = {signed}; base = {base}; {order}{extra}}}"
        );
        (Shape::Int { bits, align, big }, text)
    }

    /// Declares a field in `out`; returns its shape after the shapes of its tag or length.
    fn field(&mut self, depth: u32, name: &str, out: &mut String) -> Vec<Shape> {
        let kinds = if depth < 3 { 9 } else { 5 };
        match self.dice.below(kinds) {
            0 | 1 => {
                let signed = self.dice.flip();
                let (shape, text) = self.int(signed, "");
                let _ = writeln!(out, "{text} {name};");
                vec![shape]
            }
            2 => {
                let big = self.big;
                let bits = if self.dice.flip() { 32 } else { 64 };
                let digits =
                    if bits == 32 { "exp_dig = 8; mant_dig = 24" } else { "exp_dig = 11; mant_dig = 53" };
                let _ = writeln!(out, "floating_point {{ {digits}; align = 8; }} {name};");
                vec![Shape::Float { bits, big }]
            }
            3 => {
                let _ = writeln!(out, "string {name};");
                vec![Shape::Text]
            }
            4 => {
                let last = self.dice.below(6);
                let (shape, text) = self.label(last, &["some", "\"other one\"", "third"]);
                let _ = writeln!(out, "{text} {name};");
                vec![shape]
            }
            5 => {
                let (shape, text) = self.structure(depth + 1);
                let _ = writeln!(out, "{text} {name};");
                vec![shape]
            }
            6 => {
                let labels = ["one", "two", "three"];
                let (tag, text) = self.label(2, &labels);
                let tag_name = self.name();
                let _ = writeln!(out, "{text} {tag_name};\nvariant <{tag_name}> {{");
                let mut options = Vec::new();
                for label in labels {
                    // An option is one field.
                    let signed = self.dice.flip();
                    let (shape, text) = match self.dice.below(3) {
                        0 => self.structure(depth + 1),
                        1 => (Shape::Text, "string".to_owned()),
                        _ => self.int(signed, ""),
                    };
                    let _ = writeln!(out, "{text} {label};");
                    options.push(shape);
                }
                let _ = writeln!(out, "}} {name};");
                vec![tag, Shape::Variant { options }]
            }
            7 => {
                let length = self.dice.below(4);
                // Not of length 0, see the writing of texts.
                if length > 0 && self.dice.flip() {
                    let _ = writeln!(
                        out,
                        "integer {{ size = 8; align = 8; signed = 1; encoding = UTF8; }} {name}[{length}];"
                    );
                    return vec![Shape::TextArray(length)];
                }
                let (element, text) = self.element(depth);
                let _ = writeln!(out, "{text} {name}[{length}];");
                vec![Shape::Array { align: align_of(&element), length, element: Box::new(element) }]
            }
            _ => {
                let length_name = self.name();
                let (length, text) = self.label_free_length();
                let (element, element_text) = self.element(depth);
                let _ = writeln!(out, "{text} {length_name};\n{element_text} {name}[{length_name}];");
                let align = align_of(&element);
                vec![length, Shape::Sequence { align, element: Box::new(element) }]
            }
        }
    }

    fn element(&mut self, depth: u32) -> (Shape, String) {
        if self.dice.flip() { self.structure(depth + 1) } else { self.int(false, "") }
    }

    /// Returns a length of 3 bits: 0 to 7 elements.
    fn label_free_length(&mut self) -> (Shape, String) {
        let text = "integer { size = 3; align = 8; signed = false; }".to_owned();
        (Shape::Int { bits: 3, align: 8, big: self.big }, text)
    }

    fn label(&mut self, last: u64, labels: &[&str]) -> (Shape, String) {
        let bits = 4 + self.dice.below(5) as usize;
        let align = [1, 8][self.dice.below(2) as usize];
        let named = labels.join(", ");
        let text =
            format!("enum : integer {{ size = {bits}; align = {align}; signed = false; }} {{ {named} }}");
        (Shape::Label { bits, align, big: self.big, last }, text)
    }

    fn structure(&mut self, depth: u32) -> (Shape, String) {
        let (mut text, mut fields) = ("struct {\n".to_owned(), Vec::new());
        for _ in 0..self.dice.below(4) {
            let name = self.name();
            fields.extend(self.field(depth, &name, &mut text));
        }
        let minimum = [1, 1, 8, 16, 32][self.dice.below(5) as usize];
        let align = fields.iter().map(align_of).max().unwrap_or(1).max(minimum);
        let _ = write!(text, "}} align({minimum})");
        (Shape::Struct { align, fields }, text)
    }
}

fn write(shape: &Shape, dice: &mut Dice, out: &mut Bits, last: &mut u64) {
    out.align(align_of(shape));
    match shape {
        Shape::Int { bits, big, .. } => {
            let value = dice.next() & (u64::MAX >> (64 - bits));
            *last = value;
            out.put(value, *bits, *big);
        }
        Shape::Label { bits, big, last: highest, .. } => {
            *last = dice.below(highest + 1);
            out.put(*last, *bits, *big);
        }
        Shape::Float { bits: 32, big } => {
            out.put(u64::from((dice.next() as i32 as f32 / 65536.0).to_bits()), 32, *big)
        }
        Shape::Float { bits, big } => out.put((dice.next() as i64 as f64 / 3e7).to_bits(), *bits, *big),
        Shape::Text => {
            // Never empty: babeltrace2 2.0.4 then prints an earlier event's text.
            for _ in 0..=dice.below(9) {
                out.put(u64::from(b"abc \"\\'?\t"[dice.below(9) as usize]), 8, false);
            }
            out.put(0, 8, false);
        }
        Shape::TextArray(length) => {
            (0..*length).for_each(|n| out.put((dice.below(3) * 50).max(u64::from(n == 0) * 50), 8, false))
        }
        Shape::Struct { fields, .. } => fields.iter().for_each(|field| write(field, dice, out, last)),
        Shape::Variant { options } => write(&options[*last as usize], dice, out, &mut 0),
        Shape::Array { length, element, .. } => {
            (0..*length).for_each(|_| write(element, dice, out, &mut 0));
        }
        Shape::Sequence { element, .. } => (0..*last).for_each(|_| write(element, dice, out, &mut 0)),
    }
}

/// Properties of a written trace.
pub(crate) struct Written {
    pub(crate) events: u64,
    pub(crate) events_lost: u64,
    pub(crate) packets_lost: u64,
    pub(crate) metadata: String,
    /// Packets, in the order of each stream.
    pub(crate) packets: Vec<Vec<u8>>,
}

/// Writes a trace of `streams` streams to `folder`.
pub(crate) fn trace(seed: u64, streams: u64, folder: &Path) -> Written {
    let mut dice = Dice::new(seed);
    let big = dice.flip();
    let large = dice.flip();
    let order = if big { "be" } else { "le" };
    let (short_bits, short_align, id_bits, extended) =
        if large { (32, 8, 16, 65535_u64) } else { (27, 1, 5, 31) };
    let mut metadata = format!(
        "/* CTF 1.8 */\n\
        typealias integer {{ size = 8; align = 8; signed = false; }} := uint8_t;\n\
        typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;\n\
        typealias integer {{ size = 64; align = 8; signed = false; }} := unsigned long;\n\
        trace {{ major = 1; minor = 8; byte_order = {order};\n\
        uuid = \"01020304-0506-0708-090a-0b0c0d0e0f10\";\n\
        packet.header := struct {{ uint32_t magic; uint8_t uuid[16]; uint32_t stream_id;\n\
        unsigned long stream_instance_id; }}; }};\n\
        env {{ hostname = \"nowhere\"; tracer_major = 2; }};\n\
        clock {{ name = \"monotonic\"; freq = 1000000000; offset = 0; }};\n\
        typealias integer {{ size = 64; align = 8; signed = false; map = clock.monotonic.value; }} := full_t;\n\
        typealias integer {{ size = {short_bits}; align = {short_align}; signed = false;\n\
        map = clock.monotonic.value; }} := short_t;\n\
        struct head {{ enum : integer {{ size = {id_bits}; align = {short_align}; signed = false; }}\n\
        {{ compact = 0 ... {}, extended = {extended} }} id;\n\
        variant <id> {{ struct {{ short_t timestamp; }} compact;\n\
        struct {{ uint32_t id; full_t timestamp; }} extended; }} v; }} align(8);\n\
        stream {{ id = 0; event.header := struct head;\n\
        packet.context := struct {{ full_t timestamp_begin; full_t timestamp_end; unsigned long content_size;\n\
        unsigned long packet_size; unsigned long packet_seq_num; unsigned long events_discarded;\n\
        uint32_t cpu_id; }};\n\
        event.context := struct {{ uint32_t _vpid; uint32_t _vtid; }}; }};\n",
        extended - 1
    );
    let mut classes = Vec::new();
    for id in 0..4 {
        let mut maker = Maker { dice: &mut dice, big, names: 0 };
        // Without variants and sequences, on which babeltrace2 2.0.4 stops here
        // (ctf-meta-update-value-storing-indexes.c:65).
        let (context, context_text) = maker.structure(3);
        let (payload, payload_text) = maker.structure(0);
        let (context, context_text) = match id {
            0 => (None, String::new()),
            _ => (Some(context), format!("context := {context_text};")),
        };
        let _ = writeln!(
            metadata,
            "event {{ name = \"made:e{id}\"; id = {id}; stream_id = 0; loglevel = 13; {context_text}\n\
            fields := {payload_text}; }};"
        );
        classes.push((context, payload));
    }
    std::fs::write(folder.join("metadata"), &metadata).expect("the folder is writable");

    let mut written = Written { events: 0, events_lost: 0, packets_lost: 0, metadata, packets: Vec::new() };
    for stream in 0..streams {
        let mut file = Vec::new();
        let (mut time, mut sequence, mut lost) = (1_000_000 + dice.below(1000) * 1000, 0, 0);
        // Uneven: some streams have many times more packets than others.
        let packets = if stream == 0 { 6 } else { 1 + dice.below(3) };
        for number in 0..packets {
            if number > 0 && dice.below(4) == 0 {
                let gone = 1 + dice.below(3);
                sequence += gone;
                written.packets_lost += gone;
            }
            let mut bits = Bits::default();
            bits.put(0xc1fc_1fc1, 32, big);
            (1..=16).for_each(|byte| bits.put(byte, 8, big));
            bits.put(0, 32, big);
            bits.put(stream, 64, big);
            let context = bits.at;
            [time, 0, 0, 0, sequence].iter().for_each(|value| bits.put(*value, 64, big));
            if number > 0 && dice.below(3) == 0 {
                let gone = 1 + dice.below(100);
                lost += gone;
                written.events_lost += gone;
            }
            bits.put(lost, 64, big);
            bits.put(stream, 32, big);
            for _ in 0..dice.below(40) {
                let long = dice.below(10) == 0;
                // Less than the short timestamp's range, so that it can be extended; sometimes a
                // full timestamp.
                time += if long { dice.below(1 << 40) } else { 1 + dice.below(1 << 24) };
                let id = dice.below(classes.len() as u64);
                bits.align(8);
                if long {
                    bits.put(extended, id_bits, big);
                    bits.align(8);
                    bits.put(id, 32, big);
                    bits.put(time, 64, big);
                } else {
                    bits.put(id, id_bits, big);
                    bits.align(short_align);
                    bits.put(time & (u64::MAX >> (64 - short_bits)), short_bits, big);
                }
                bits.align(8);
                bits.put(100 + stream, 32, big);
                bits.put(written.events & 0xffff_ffff, 32, big);
                let (context, payload) = &classes[id as usize];
                if let Some(context) = context {
                    write(context, &mut dice, &mut bits, &mut 0);
                }
                write(payload, &mut dice, &mut bits, &mut 0);
                written.events += 1;
            }
            let content = bits.at;
            let packet = content.div_ceil(8) * 8 + 8 * dice.below(50) as usize;
            bits.bytes.resize(packet / 8, 0);
            for (index, value) in [(1, time), (2, content as u64), (3, packet as u64)] {
                bits.set(context + 64 * index, value, 64, big);
            }
            file.extend_from_slice(&bits.bytes);
            written.packets.push(bits.bytes);
            sequence += 1;
            time += 1 + dice.below(1000);
        }
        std::fs::write(folder.join(format!("s_{stream}")), file).expect("the folder is writable");
    }
    written
}
