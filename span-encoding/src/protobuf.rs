//! Protobuf's wire format, as far as spans need it (protobuf.dev/programming-guides/encoding).
//!
//! *In*: fields. *Out*: their bytes, appended to a buffer that the caller reuses. *Invariant*: the
//! bytes are a function of the fields and their order.
//!
//! *Rejected*: messages derived by prost. They own their strings: a span has 30 of them, each
//! copied into an allocation and then copied again into the buffer.

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

/// Maximum bytes of key and length of a nested message, for fields below 16.
pub const FRAME_MAX: usize = 11;

pub(crate) fn uint(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, VARINT);
    varint(out, value);
}

/// Appends an `int64`: a negative one takes ten bytes.
pub(crate) fn int(out: &mut Vec<u8>, field: u32, value: i64) {
    uint(out, field, value as u64);
}

pub(crate) fn fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    key(out, field, LENGTH);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

pub(crate) fn text(out: &mut Vec<u8>, field: u32, value: &str) {
    bytes(out, field, value.as_bytes());
}

/// Appends a nested message. Its length is known after it is written: if the length takes more than
/// one byte, the message is moved.
pub(crate) fn message(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    key(out, field, LENGTH);
    let start = out.len();
    out.push(0);
    write(out);
    let length = (out.len() - start - 1) as u64;
    match u8::try_from(length) {
        Ok(short @ ..0x80) => out[start] = short,
        _ => {
            let mut encoded_length = Vec::with_capacity(FRAME_MAX);
            varint(&mut encoded_length, length);
            out.splice(start..start + 1, encoded_length);
        }
    }
}

fn key(out: &mut Vec<u8>, field: u32, wire: u32) {
    varint(out, (field << 3 | wire).into());
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    /// Examples of the documentation.
    #[test]
    fn fields_equal_the_documented_examples() {
        assert_eq!(written(|out| uint(out, 1, 150)), [0x08, 0x96, 0x01]);
        assert_eq!(written(|out| text(out, 2, "testing")), b"\x12\x07testing");
        assert_eq!(written(|out| message(out, 3, |out| uint(out, 1, 150))), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(written(|out| int(out, 1, -2))[1..], [0xfe, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        assert_eq!(written(|out| fixed64(out, 1, 1)), [0x09, 1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn nested_message_of_any_length_has_a_length_prefix() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 70_000] {
            let content = vec![7; length];
            let nested = written(|out| message(out, 1, |out| out.extend_from_slice(&content)));
            assert_eq!(nested, written(|out| bytes(out, 1, &content)), "{length}");
        }
    }
}
