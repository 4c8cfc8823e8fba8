//! Extraction of the metadata's text from its packets (specification section 7.1).
//!
//! *In*: bytes, cut anywhere. *Out*: text. Each packet has a header of 37 bytes, text and padding.

use super::metadata::MetadataError;

const MAGIC: u32 = 0x75d1_1d57;
/// magic 4, uuid 16, checksum 4, content size 4, packet size 4, compression, encryption, checksum
/// scheme, major, minor.
const HEADER_BYTES: usize = 37;

/// State with the bytes of an incomplete packet or character.
#[derive(Default, Debug)]
pub(crate) struct Unpacker {
    pending: Vec<u8>,
    /// Text of packets, because a packet's end may split a character.
    chars: Vec<u8>,
    form: Form,
}

#[derive(Default, PartialEq, Eq, Clone, Copy, Debug)]
enum Form {
    #[default]
    Unknown,
    Plain,
    Packets,
}

impl Unpacker {
    pub(crate) fn has_partial_input(&self) -> bool {
        !self.pending.is_empty() || !self.chars.is_empty()
    }

    /// Appends all complete text to `text`.
    pub(crate) fn append(&mut self, bytes: &[u8], text: &mut String) -> Result<(), MetadataError> {
        self.pending.extend_from_slice(bytes);
        if self.form == Form::Unknown && self.pending.len() >= 4 {
            let packets = byte_order_reader(&self.pending).is_some();
            self.form = if packets { Form::Packets } else { Form::Plain };
        }
        let used = match self.form {
            Form::Unknown => 0,
            Form::Plain => append_valid(&self.pending, text)?,
            Form::Packets => {
                let mut used = 0;
                while let Some((content, length)) = packet(&self.pending[used..])? {
                    let begin = used + HEADER_BYTES;
                    self.chars.extend_from_slice(&self.pending[begin..begin + content]);
                    used += length;
                }
                let consumed = append_valid(&self.chars, text)?;
                self.chars.drain(..consumed);
                used
            }
        };
        self.pending.drain(..used);
        Ok(())
    }
}

/// Appends all complete characters and returns their length in bytes.
fn append_valid(bytes: &[u8], text: &mut String) -> Result<usize, MetadataError> {
    let valid = match std::str::from_utf8(bytes) {
        Ok(all) => all,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return Err(MetadataError::Packet("the text is not UTF-8")),
    };
    text.push_str(valid);
    Ok(valid.len())
}

type Read32 = fn([u8; 4]) -> u32;

fn byte_order_reader(bytes: &[u8]) -> Option<Read32> {
    let magic = bytes.first_chunk::<4>()?;
    [u32::from_le_bytes as Read32, u32::from_be_bytes].into_iter().find(|read| read(*magic) == MAGIC)
}

/// Returns the sizes in bytes of the first packet's content and of the packet; `None` if it is
/// incomplete.
fn packet(bytes: &[u8]) -> Result<Option<(usize, usize)>, MetadataError> {
    if bytes.len() < HEADER_BYTES {
        return Ok(None);
    }
    let read =
        byte_order_reader(bytes).ok_or(MetadataError::Packet("a packet has an invalid magic number"))?;
    let number = |at: usize| bytes[at..].first_chunk::<4>().map_or(0, |four| read(*four)) as usize;
    let (content, length) = (number(24), number(28));
    if bytes[32..35] != [0, 0, 0] {
        return Err(MetadataError::Packet("a packet is compressed, encrypted or has an unknown checksum"));
    }
    if bytes[35] != 1 {
        return Err(MetadataError::Packet("a packet has another major version than 1"));
    }
    if content % 8 != 0 || length % 8 != 0 || content / 8 < HEADER_BYTES || length < content {
        return Err(MetadataError::Packet("a packet has invalid sizes"));
    }
    let length = length / 8;
    Ok((length <= bytes.len()).then_some((content / 8 - HEADER_BYTES, length)))
}
