//! Records of `blkkin.events` as the previous and the next release write them, made from those of
//! this one.
//!
//! *In*: an encoded batch. *Out*: the same batch without the fields that the schema got last, or
//! with fields that this schema lacks, in the batch and in each of its parts. *Invariant*: this
//! release decodes the same events from each.
//!
//! *Rejected*: binaries of other releases (a second build of everything, in each run of the tests).

/// Nested messages of an EventBatch (wire/blkkin.proto), by field number.
const NESTED: [u64; 13] = [6, 8, 14, 15, 19, 20, 21, 22, 23, 24, 25, 26, 28];
/// Fields of an EventBatch that the schema got last: process contexts and thread attributes.
const BATCH_FIELDS_OLD: u64 = 28;
/// Fields of its SourceStats (field 8) before these were added.
const STATS_FIELDS_OLD: u64 = 24;
const STATS: u64 = 8;
/// Fields that no schema has yet: `1000: 7` (varint) and `1001: "next"`.
const NEWER_FIELDS: &[u8] = &[0xc0, 0x3e, 7, 0xca, 0x3e, 4, b'n', b'e', b'x', b't'];

/// Returns the record as the previous release writes it.
pub(crate) fn of_previous_release(record: &[u8]) -> Vec<u8> {
    let fields = fields(record).into_iter().filter(|field| field.number <= BATCH_FIELDS_OLD);
    let written = fields.map(|field| match field.number {
        STATS => {
            let kept =
                self::fields(field.content).into_iter().filter(|field| field.number <= STATS_FIELDS_OLD);
            nested(STATS, &kept.flat_map(|field| field.all.to_vec()).collect::<Vec<_>>())
        }
        _ => field.all.to_vec(),
    });
    written.flatten().collect()
}

/// Returns the record as the next release writes it.
pub(crate) fn of_next_release(record: &[u8]) -> Vec<u8> {
    let written = fields(record).into_iter().map(|field| match NESTED.contains(&field.number) {
        true => nested(field.number, &[field.content, NEWER_FIELDS].concat()),
        false => field.all.to_vec(),
    });
    written.flatten().chain(NEWER_FIELDS.iter().copied()).collect()
}

struct Field<'a> {
    number: u64,
    /// Key and content.
    all: &'a [u8],
    /// Content of a field with a length; empty for other fields.
    content: &'a [u8],
}

fn fields(mut message: &[u8]) -> Vec<Field<'_>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let start = message;
        let key = varint(&mut message);
        let mut content = &[][..];
        match key & 7 {
            0 => drop(varint(&mut message)),
            1 => message = &message[8..],
            2 => {
                let length = varint(&mut message) as usize;
                (content, message) = message.split_at(length);
            }
            5 => message = &message[4..],
            other => panic!("wire type {other}"),
        }
        found.push(Field { number: key >> 3, all: &start[..start.len() - message.len()], content });
    }
    found
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let (read, rest) = bytes.split_at(length);
    *bytes = rest;
    read.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
}

fn nested(number: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut value in [number << 3 | 2, content.len() as u64] {
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }
    bytes.extend(content);
    bytes
}
