//! Columns as they stand in a record, written once.
//!
//! *In*: values, one behind the other. *Out*: the bytes of a packed repeated field
//! ([encoding](https://protobuf.dev/programming-guides/encoding/#packed)): what `prost` writes for a `Vec` of them.
//! *Invariant*: that. The tests beside hold each kind of column against `prost`.
//!
//! *Rejected*: `Vec<u32>` and `Vec<i64>` in a derived message, as it is for the columns of events: there each value is touched
//! three times (kept, measured, written). Of a span's 75 values nearly all are places in the dictionary below 128, one byte each.

use prost::Message;

/// A column of a message.
#[derive(Debug, Default)]
pub(super) struct Packed(Vec<u8>);

impl Packed {
    /// With room for `bytes`.
    pub(super) fn with_room(bytes: usize) -> Self {
        Packed(Vec::with_capacity(bytes))
    }

    /// Of `uint32` or `uint64`.
    pub(super) fn push(&mut self, value: impl Into<u64>) {
        let mut value = value.into();
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Of `sint64`.
    pub(super) fn push_signed(&mut self, value: i64) {
        self.push((value << 1 ^ value >> 63) as u64);
    }

    /// Of `fixed64`.
    pub(super) fn push_fixed(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// The field, as a message has it: none where the column is empty.
    fn write(&self, number: u8, out: &mut Packed) {
        if !self.0.is_empty() {
            out.field(number, &self.0);
        }
    }

    /// A field of known length: its key, its length, its bytes.
    pub(super) fn field(&mut self, number: u8, bytes: &[u8]) {
        self.push(u64::from(number) << 3 | LENGTH_DELIMITED);
        self.push(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// The fields of a message that `prost` knows.
    pub(super) fn append(&mut self, message: &impl Message) {
        message.encode_raw(&mut self.0);
    }

    /// What was written.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The wire type of what says its length first.
const LENGTH_DELIMITED: u64 = 2;

/// The fields `columns`, numbered from 1, as a message in field `number`, there also when it is empty.
pub(super) fn write_message(number: u8, columns: &[&Packed], out: &mut Packed) {
    let mut message = Packed::with_room(bytes_of(columns));
    (1..).zip(columns).for_each(|(number, column)| column.write(number, &mut message));
    out.field(number, &message.0);
}

/// What these columns take in a record at the most: each with its key and its length.
pub(super) fn bytes_of(columns: &[&Packed]) -> usize {
    columns.iter().map(|column| column.len() + 6).sum()
}

/// A message all of whose fields are columns, in the order of their numbers from 1.
macro_rules! packed_message {
    ($(#[$doc:meta])* $message:ident { $($column:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(super) struct $message {
            $(pub(super) $column: $crate::v1::packed::Packed,)+
        }

        impl $message {
            /// What it takes in a record at the most.
            pub(super) fn bytes(&self) -> usize {
                $crate::v1::packed::bytes_of(&[$(&self.$column),+])
            }

            /// As field `number` of the message around it.
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
        fn what_is_written_is_what_prost_writes(
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
            prop_assert!(columns.bytes() + 7 >= written.len(), "{} said", columns.bytes());
            let inner = Inner { small, fixed, signed, large };
            prop_assert_eq!(written.into_bytes(), Around { inner }.encode_to_vec());
        }
    }
}
