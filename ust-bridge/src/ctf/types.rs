//! Types as the metadata declares them: what a field looks like in the bits of a packet.
//!
//! Aliases are followed while reading, so a type knows its parts; how deep they nest and how much they hold is bounded
//! where each is made, because a short text can name exponentially large ones.

use std::sync::Arc;

/// How deep types may nest. LTTng's nest 4 deep.
pub const DEPTH_MAX: u32 = 24;

/// Which byte of a number comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The lowest first; bit fields begin at the lowest bit.
    Little,
    /// The highest first; bit fields begin at the highest bit.
    Big,
}

/// A type with its alignment in bits.
#[derive(Debug)]
pub struct Type {
    /// What it is.
    pub kind: Kind,
    /// Where it may begin: a power of two.
    pub align: u32,
    /// Types inside each other, itself included.
    pub depth: u32,
}

/// What a type is.
#[derive(Debug)]
pub enum Kind {
    /// A whole number.
    Int(Int),
    /// A binary floating point number.
    Float(Float),
    /// A number with names for some of its values.
    Enum(Int, Arc<Labels>),
    /// Bytes up to a NUL.
    Text,
    /// Fields one after another.
    Struct(Vec<Field>),
    /// One of several, chosen by the label of an enumeration that came before.
    Variant(Option<Path>, Vec<Field>),
    /// As many elements as the metadata says.
    Array(Arc<Type>, u64),
    /// As many elements as a number says that came before.
    Sequence(Arc<Type>, Path),
}

/// A whole number of 1 to 64 bits.
#[derive(Clone, Debug)]
pub struct Int {
    /// How many bits.
    pub bits: u32,
    /// Where it may begin, in bits.
    pub align: u32,
    /// Two's complement.
    pub signed: bool,
    /// None: the trace's.
    pub order: Option<Order>,
    /// The base that people read it in.
    pub base: u8,
    /// It is a byte of text.
    pub text: bool,
    /// Its value is this clock's time.
    pub clock: Option<Arc<str>>,
}

/// A number of IEEE 754: 32 or 64 bits.
#[derive(Clone, Debug)]
pub struct Float {
    /// 32 or 64.
    pub bits: u32,
    /// None: the trace's.
    pub order: Option<Order>,
}

/// One name of an enumeration, with the values that it stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// As declared.
    pub name: Arc<str>,
    /// The first value.
    pub low: i128,
    /// The last value.
    pub high: i128,
}

/// Names of an enumeration; values may have several.
pub type Labels = Vec<Label>;

/// A named part of a structure or variant.
#[derive(Clone, Debug)]
pub struct Field {
    /// As declared, with the `_` that LTTng puts before names of users.
    pub name: Arc<str>,
    /// What it is.
    pub of: Arc<Type>,
}

/// `a.b.c`: where the number lies that chooses or counts.
pub type Path = Vec<Arc<str>>;

impl Type {
    pub(crate) fn new(kind: Kind, align: u32) -> Result<Arc<Self>, String> {
        let deepest = match &kind {
            Kind::Struct(fields) | Kind::Variant(_, fields) => {
                fields.iter().map(|field| field.of.depth).max().unwrap_or(0)
            }
            Kind::Array(element, _) | Kind::Sequence(element, _) => element.depth,
            _ => 0,
        };
        if deepest >= DEPTH_MAX {
            return Err(format!("types nest deeper than {DEPTH_MAX}"));
        }
        if !align.is_power_of_two() || align > 4096 {
            return Err(format!("alignment {align} is no power of two up to 4096"));
        }
        Ok(Arc::new(Self { kind, align, depth: deepest + 1 }))
    }

    pub(crate) fn int(int: Int) -> Result<Arc<Self>, String> {
        let align = int.align;
        Self::new(Kind::Int(int), align)
    }

    /// A structure's alignment is its fields' largest, or what is asked for, if more.
    pub(crate) fn structure(fields: Vec<Field>, align: u32) -> Result<Arc<Self>, String> {
        let largest = fields.iter().map(|field| field.of.align).max().unwrap_or(1);
        Self::new(Kind::Struct(fields), largest.max(align))
    }

    /// A byte of text: arrays and sequences of these are strings.
    pub(crate) fn is_text_byte(&self) -> bool {
        matches!(&self.kind, Kind::Int(int) if int.text && int.bits == 8 && int.align == 8)
    }
}

/// The name as people know it: LTTng writes one `_` before it, so that it is no keyword of the metadata's language.
pub fn shown(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}
