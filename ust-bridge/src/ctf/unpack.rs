//! Metadata's packets as text (specification section 7.1): each has a head of 37 bytes, then text, then padding.

use super::metadata::MetadataError;

const MAGIC: u32 = 0x75d1_1d57;
/// magic 4, uuid 16, checksum 4, content size 4, packet size 4, compression, encryption, checksum scheme, major, minor.
const HEAD: usize = 37;

/// Bytes that are no whole packet or character yet.
#[derive(Default, Debug)]
pub(crate) struct Unpacker {
    held: Vec<u8>,
    /// Text of packets: a character may be cut by a packet's end.
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
    pub(crate) fn holds_bytes(&self) -> bool {
        !self.held.is_empty() || !self.chars.is_empty()
    }

    /// Adds to `text` what is whole.
    pub(crate) fn append(&mut self, bytes: &[u8], text: &mut String) -> Result<(), MetadataError> {
        self.held.extend_from_slice(bytes);
        if self.form == Form::Unknown && self.held.len() >= 4 {
            let packets = order(&self.held).is_some();
            self.form = if packets { Form::Packets } else { Form::Plain };
        }
        let used = match self.form {
            Form::Unknown => 0,
            Form::Plain => whole(&self.held, text)?,
            Form::Packets => {
                let mut used = 0;
                while let Some((content, length)) = packet(&self.held[used..])? {
                    let begin = used + HEAD;
                    self.chars.extend_from_slice(&self.held[begin..begin + content]);
                    used += length;
                }
                let shown = whole(&self.chars, text)?;
                self.chars.drain(..shown);
                used
            }
        };
        self.held.drain(..used);
        Ok(())
    }
}

/// The text as far as its characters are whole.
fn whole(bytes: &[u8], text: &mut String) -> Result<usize, MetadataError> {
    let valid = match std::str::from_utf8(bytes) {
        Ok(all) => all,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return Err(MetadataError::Packet("the text is no UTF-8")),
    };
    text.push_str(valid);
    Ok(valid.len())
}

type Read32 = fn([u8; 4]) -> u32;

fn order(bytes: &[u8]) -> Option<Read32> {
    let magic = bytes.first_chunk::<4>()?;
    [u32::from_le_bytes as Read32, u32::from_be_bytes].into_iter().find(|read| read(*magic) == MAGIC)
}

/// Sizes in bytes of the first packet's content and of all of it; none if it has not come whole.
fn packet(bytes: &[u8]) -> Result<Option<(usize, usize)>, MetadataError> {
    if bytes.len() < HEAD {
        return Ok(None);
    }
    let read = order(bytes).ok_or(MetadataError::Packet("a packet has another magic number"))?;
    let number = |at: usize| bytes[at..].first_chunk::<4>().map_or(0, |four| read(*four)) as usize;
    let (content, length) = (number(24), number(28));
    if bytes[32..35] != [0, 0, 0] {
        return Err(MetadataError::Packet("a packet is compressed, encrypted or of an unknown checksum"));
    }
    if bytes[35] != 1 {
        return Err(MetadataError::Packet("a packet is of another major version than 1"));
    }
    if content % 8 != 0 || length % 8 != 0 || content / 8 < HEAD || length < content {
        return Err(MetadataError::Packet("a packet's sizes are impossible"));
    }
    let length = length / 8;
    Ok((length <= bytes.len()).then_some((content / 8 - HEAD, length)))
}
