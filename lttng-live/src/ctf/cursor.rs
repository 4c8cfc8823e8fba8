//! Reader of a packet's bits, in order.
//!
//! *In*: a packet's bytes. *Out*: integers and positions of texts. *Invariant*: no read passes the
//! end of the content.

use std::ffi::CStr;

use super::types::ByteOrder;

/// Reason why bits cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// A field extends beyond the packet's content.
    #[error("the packet's content ends within a field, at bit {0}")]
    Truncated(u64),
    /// The byte order changes within a byte, which has no meaning (specification section 4.1.5).
    #[error("the byte order changes within a byte, at bit {0}")]
    ByteOrderWithinByte(u64),
}

/// Position in a packet.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'p> {
    bytes: &'p [u8],
    /// Next bit.
    pub(crate) at: u64,
    /// First bit after the content; never beyond the packet's bytes.
    pub(crate) end: u64,
    last: ByteOrder,
}

impl<'p> Cursor<'p> {
    pub(crate) fn new(bytes: &'p [u8], at: u64, end: u64, order: ByteOrder) -> Self {
        Self { bytes, at, end: end.min(bytes.len() as u64 * 8), last: order }
    }

    #[inline]
    pub(crate) fn align(&mut self, align: u32) -> Result<(), ReadError> {
        let align = u64::from(align);
        let at = (self.at + align - 1) & !(align - 1);
        if at > self.end {
            return Err(ReadError::Truncated(self.at));
        }
        self.at = at;
        Ok(())
    }

    /// Reads the next `bits` (1 to 64) as an unsigned integer.
    #[inline]
    pub(crate) fn unsigned(&mut self, bits: u32, order: ByteOrder) -> Result<u64, ReadError> {
        let at = self.at;
        if u64::from(bits) > self.end - at {
            return Err(ReadError::Truncated(at));
        }
        self.at = at + u64::from(bits);
        if at.is_multiple_of(8) && bits.is_multiple_of(8) {
            self.last = order;
            return Ok(self.whole_bytes((at / 8) as usize, bits as usize / 8, order));
        }
        self.bit_field(at, bits, order)
    }

    #[inline]
    fn whole_bytes(&self, from: usize, length: usize, order: ByteOrder) -> u64 {
        let bytes = &self.bytes[from..from + length];
        match (length, order) {
            (1, _) => u64::from(bytes[0]),
            (4, order) => {
                let four: [u8; 4] = bytes.try_into().unwrap_or_default();
                u64::from(if order == ByteOrder::Little {
                    u32::from_le_bytes(four)
                } else {
                    u32::from_be_bytes(four)
                })
            }
            (8, order) => {
                let eight: [u8; 8] = bytes.try_into().unwrap_or_default();
                if order == ByteOrder::Little { u64::from_le_bytes(eight) } else { u64::from_be_bytes(eight) }
            }
            (_, ByteOrder::Little) => bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            (_, ByteOrder::Big) => bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        }
    }

    #[inline(never)]
    fn bit_field(&mut self, at: u64, bits: u32, order: ByteOrder) -> Result<u64, ReadError> {
        if !at.is_multiple_of(8) && self.last != order {
            return Err(ReadError::ByteOrderWithinByte(at));
        }
        self.last = order;
        let (first, skip) = ((at / 8) as usize, (at % 8) as u32);
        // Up to 7 + 64 bits: 9 bytes.
        let length = ((skip + bits).div_ceil(8)) as usize;
        let bytes = &self.bytes[first..first + length];
        let mask = u128::from(u64::MAX >> (64 - bits));
        let value = match order {
            ByteOrder::Little => {
                bytes.iter().rev().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte)) >> skip
            }
            ByteOrder::Big => {
                let sum = bytes.iter().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
                sum >> (length as u32 * 8 - skip - bits)
            }
        };
        Ok((value & mask) as u64)
    }

    /// Reads a text and its NUL; returns its offset and length.
    #[inline]
    pub(crate) fn text(&mut self) -> Result<(u32, u32), ReadError> {
        let from = (self.at / 8) as usize;
        let to = (self.end / 8) as usize;
        let rest = self.bytes.get(from..to).ok_or(ReadError::Truncated(self.at))?;
        // The C library searches for the NUL 16 bytes at a time.
        let text = CStr::from_bytes_until_nul(rest).map_err(|_| ReadError::Truncated(self.at))?;
        let length = text.count_bytes();
        self.at += (length as u64 + 1) * 8;
        Ok((from as u32, length as u32))
    }

    /// Reads a text of `length` bytes, which a NUL may end earlier.
    pub(crate) fn text_with_length(&mut self, length: u64) -> Result<(u32, u32), ReadError> {
        if length > (self.end - self.at) / 8 {
            return Err(ReadError::Truncated(self.at));
        }
        let from = (self.at / 8) as usize;
        let bytes = &self.bytes[from..from + length as usize];
        let text_length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        self.at += length * 8;
        Ok((from as u32, text_length as u32))
    }
}

/// Extends the sign of a value of `bits`.
#[inline]
pub(crate) fn sign_extend(value: u64, bits: u32) -> i64 {
    let unused = 64 - bits;
    ((value << unused) as i64) >> unused
}
