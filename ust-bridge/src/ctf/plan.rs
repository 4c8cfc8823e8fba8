//! How the fields of one scope are read: compiled once from types, run for each event.
//!
//! A plan is a tree of nodes in the order of the bits. Each number that is read is kept in a register, so that a variant or
//! a sequence behind it finds what it depends on without a search. What is read comes out as a flat list of [`Item`]s,
//! whose names and types are the plan's [`Info`]s.

use std::sync::Arc;

use super::types::{Labels, Order};

/// What a plan reads one after another.
#[derive(Debug)]
pub struct Plan {
    pub(crate) align: u32,
    pub(crate) fields: Vec<Node>,
    /// What the items' numbers mean.
    pub infos: Vec<Info>,
    /// Registers that are in use once this plan has run.
    pub(crate) registers: usize,
}

impl Plan {
    /// Names of the fields at the top, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| &*self.infos[field.info() as usize].name)
    }

    /// What the field `name` at the top is, and which one it is.
    pub fn field(&self, name: &str) -> Option<(usize, &Info)> {
        let infos = self.fields.iter().map(|field| &self.infos[field.info() as usize]);
        infos.enumerate().find(|(_, info)| &*info.name == name)
    }
}

/// Name and type of a field.
#[derive(Debug)]
pub struct Info {
    /// Without LTTng's `_`; empty for an element.
    pub name: Arc<str>,
    /// Its type.
    pub what: What,
}

/// What a field is, as far as one needs to show it.
#[derive(Debug)]
pub enum What {
    /// A whole number.
    Int {
        /// Negative values are possible.
        signed: bool,
        /// For people.
        base: u8,
        /// Its width.
        bits: u32,
    },
    /// A number with names.
    Enum {
        /// Negative values are possible.
        signed: bool,
        /// For people.
        base: u8,
        /// Its width.
        bits: u32,
        /// The names.
        labels: Arc<Labels>,
    },
    /// 32 or 64 bits.
    Float(u32),
    /// UTF-8, as far as the writer kept to it.
    Text,
    /// Named fields follow, up to [`Value::End`].
    Struct,
    /// One named field follows, up to [`Value::End`].
    Variant,
    /// Elements follow, up to [`Value::End`].
    Array,
    /// Elements follow, up to [`Value::End`].
    Sequence,
}

/// One field of an event, or the begin or end of one that has parts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Item {
    /// Which [`Info`] of the plan.
    pub info: u32,
    /// What was read.
    pub value: Value,
}

/// What was read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// A number without sign.
    Unsigned(u64),
    /// A number with sign.
    Signed(i64),
    /// A float; one of 32 bits was widened.
    Float(f64),
    /// Bytes of the packet.
    Text {
        /// The first.
        at: u32,
        /// How many.
        length: u32,
    },
    /// Parts follow; how many, where they are elements.
    Begin(u32),
    /// No more parts.
    End,
}

/// What the decoder itself wants of a number.
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
    pub(crate) order: Order,
    pub(crate) register: u16,
    pub(crate) role: Role,
}

/// A step of a plan.
#[derive(Debug)]
pub(crate) enum Node {
    Int(IntNode),
    Float { info: u32, bits: u32, align: u32, order: Order },
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
