//! Columns in their encoded form, written in one pass.
//!
//! *In*: consecutive values. *Out*: the bytes of a packed repeated field
//! ([encoding](https://protobuf.dev/programming-guides/encoding/#packed)), as `prost` writes a
//! `Vec`. *Invariant*: equality with `prost`; the tests compare each kind of column.
//!
//! *Rejected*: `Vec<u32>` and `Vec<i64>` in a derived message, as for the columns of events: each
//! value is touched three times (stored, measured, written). Nearly all of a span's 75 values are
//! dictionary indices below 128, one byte each.

use prost::Message;

/// Column of a message.
#[derive(Debug, Default)]
pub(super) struct Packed(Vec<u8>);

impl Packed {
    /// Creates a column with capacity for `bytes`.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Packed(Vec::with_capacity(bytes))
    }

    /// Appends a `uint32` or `uint64`.
    pub(super) fn push(&mut self, value: impl Into<u64>) {
        let mut value = value.into();
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Appends a `sint64`.
    pub(super) fn push_signed(&mut self, value: i64) {
        self.push((value << 1 ^ value >> 63) as u64);
    }

    /// Appends a `fixed64`.
    pub(super) fn push_fixed(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends the field to a message, or nothing if the column is empty.
    fn write(&self, number: u8, out: &mut Packed) {
        if !self.0.is_empty() {
            out.field(number, &self.0);
        }
    }

    /// Appends a length-delimited field: key, length, bytes.
    pub(super) fn field(&mut self, number: u8, bytes: &[u8]) {
        self.push(u64::from(number) << 3 | LENGTH_DELIMITED);
        self.push(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Appends the fields of a `prost` message.
    pub(super) fn append(&mut self, message: &impl Message) {
        message.encode_raw(&mut self.0);
    }

    /// Returns the bytes.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Wire type of length-delimited fields.
const LENGTH_DELIMITED: u64 = 2;

/// Writes the fields `columns`, numbered from 1, as a message in field `number`, also if it is
/// empty.
pub(super) fn write_message(number: u8, columns: &[&Packed], out: &mut Packed) {
    let mut message = Packed::with_capacity(bytes_of(columns));
    (1..).zip(columns).for_each(|(number, column)| column.write(number, &mut message));
    out.field(number, &message.0);
}

/// Returns the maximum bytes of these columns in a record: each with its key and its length.
pub(super) fn bytes_of(columns: &[&Packed]) -> usize {
    columns.iter().map(|column| column.len() + 6).sum()
}

/// Defines a message whose fields are all columns, in the order of their numbers from 1.
macro_rules! packed_message {
    ($(#[$doc:meta])* $message:ident { $($column:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(super) struct $message {
            $(pub(super) $column: $crate::v1::packed::Packed,)+
        }

        impl $message {
            /// Returns its maximum bytes in a record.
            pub(super) fn bytes(&self) -> usize {
                $crate::v1::packed::bytes_of(&[$(&self.$column),+])
            }

            /// Writes it as field `number` of the enclosing message.
            pub(super) fn write(&self, number: u8, out: &mut $crate::v1::packed::Packed) {
                $crate::v1::packed::write_message(number, &[$(&self.$column),+], out);
            }
        }
    };
}
pub(super) use packed_message;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Around {
        #[prost(message, required, tag = "9")]
        inner: Inner,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Inner {
        #[prost(uint32, repeated, tag = "1")]
        small: Vec<u32>,
        #[prost(fixed64, repeated, tag = "2")]
        fixed: Vec<u64>,
        #[prost(sint64, repeated, tag = "3")]
        signed: Vec<i64>,
        #[prost(uint64, repeated, tag = "4")]
        large: Vec<u64>,
    }

    packed_message! {
        /// [`Inner`], packed.
        Columns { small, fixed, signed, large }
    }

    proptest! {
        #[test]
        fn packed_columns_equal_prosts_encoding(
            small: Vec<u32>,
            fixed: Vec<u64>,
            signed: Vec<i64>,
            large: Vec<u64>,
        ) {
            let mut columns = Columns::default();
            small.iter().for_each(|value| columns.small.push(*value));
            fixed.iter().for_each(|value| columns.fixed.push_fixed(*value));
            signed.iter().for_each(|value| columns.signed.push_signed(*value));
            large.iter().for_each(|value| columns.large.push(*value));
            let mut written = Packed::default();
            columns.write(9, &mut written);
            prop_assert!(columns.bytes() + 7 >= written.len(), "{} reserved", columns.bytes());
            let inner = Inner { small, fixed, signed, large };
            prop_assert_eq!(written.into_bytes(), Around { inner }.encode_to_vec());
        }
    }
}
