//! Decoding plan of one scope, compiled once from types and run for each event.
//!
//! *In*: types, through the resolver. *Out*: a flat list of [`Item`]s, with names and types in the
//! plan's [`FieldInfo`]s. A plan is a tree of nodes in the order of the bits. Each integer that is
//! read stays in a register, so that a later variant or sequence finds its tag or length without a
//! search.

use std::sync::Arc;

use super::types::{ByteOrder, Labels};

/// Plan of one scope.
#[derive(Debug)]
pub struct Plan {
    pub(crate) align: u32,
    pub(crate) fields: Vec<Node>,
    /// Names and types, by [`Item::info`].
    pub infos: Vec<FieldInfo>,
    /// Number of registers in use after this plan.
    pub(crate) registers: usize,
}

impl Plan {
    /// Returns the names of the top-level fields, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| &*self.infos[field.info() as usize].name)
    }

    /// Returns the index and type of a top-level field.
    pub fn field(&self, name: &str) -> Option<(usize, &FieldInfo)> {
        let infos = self.fields.iter().map(|field| &self.infos[field.info() as usize]);
        infos.enumerate().find(|(_, info)| &*info.name == name)
    }
}

/// Name and type of a field.
#[derive(Debug)]
pub struct FieldInfo {
    /// Name without LTTng's `_`; empty for an element.
    pub name: Arc<str>,
    /// Type of the field.
    pub field_type: FieldType,
}

/// Type of a field, as far as printing needs it.
#[derive(Debug)]
pub enum FieldType {
    /// Integer.
    Int {
        /// Negative values are possible.
        signed: bool,
        /// Base for printing.
        base: u8,
        /// Width in bits.
        bits: u32,
    },
    /// Integer with labels.
    Enum {
        /// Negative values are possible.
        signed: bool,
        /// Base for printing.
        base: u8,
        /// Width in bits.
        bits: u32,
        /// Labels of the values.
        labels: Arc<Labels>,
    },
    /// Floating point number of 32 or 64 bits.
    Float(u32),
    /// Text, normally UTF-8.
    Text,
    /// Named fields follow, up to [`Value::End`].
    Struct,
    /// Named field follows, up to [`Value::End`].
    Variant,
    /// Elements follow, up to [`Value::End`].
    Array,
    /// Elements follow, up to [`Value::End`].
    Sequence,
}

/// Field of an event, or the begin or end of a compound field.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Item {
    /// Index in [`Plan::infos`].
    pub info: u32,
    /// Value of the field.
    pub value: Value,
}

/// Value of a field.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// Unsigned integer.
    Unsigned(u64),
    /// Signed integer.
    Signed(i64),
    /// Floating point number; 32 bits are widened.
    Float(f64),
    /// Bytes of the packet.
    Text {
        /// Offset of the first byte.
        at: u32,
        /// Number of bytes.
        length: u32,
    },
    /// Begin of a compound field, with its number of parts.
    Begin(u32),
    /// End of a compound field.
    End,
}

/// Use of an integer by the decoder itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    None,
    EventId,
    Clock,
}

#[derive(Debug)]
pub(crate) struct IntNode {
    pub(crate) info: u32,
    pub(crate) bits: u32,
    pub(crate) align: u32,
    pub(crate) signed: bool,
    pub(crate) order: ByteOrder,
    pub(crate) register: u16,
    pub(crate) role: Role,
}

/// Node of a plan.
#[derive(Debug)]
pub(crate) enum Node {
    Int(IntNode),
    Float { info: u32, bits: u32, align: u32, order: ByteOrder },
    Text { info: u32 },
    TextArray { info: u32, length: u64 },
    TextSequence { info: u32, register: u16 },
    Struct { info: u32, align: u32, fields: Vec<Node> },
    Variant { info: u32, register: u16, signed: bool, ranges: Vec<(i128, i128, usize)>, options: Vec<Node> },
    Array { info: u32, align: u32, length: u64, element: Box<Node> },
    Sequence { info: u32, align: u32, register: u16, element: Box<Node> },
}

impl Node {
    pub(crate) fn info(&self) -> u32 {
        match self {
            Self::Int(int) => int.info,
            Self::Float { info, .. }
            | Self::Text { info }
            | Self::TextArray { info, .. }
            | Self::TextSequence { info, .. }
            | Self::Struct { info, .. }
            | Self::Variant { info, .. }
            | Self::Array { info, .. }
            | Self::Sequence { info, .. } => *info,
        }
    }
}
