//! Types that the metadata declares: the layout of fields in a packet.
//!
//! *In*: parsed declarations. *Out*: types with resolved aliases.
//!
//! *Invariant*: depth and size are limited when a type is created, because a short text can declare
//! exponentially large types.

use std::sync::Arc;

/// Maximum nesting of types. LTTng's nest 4 deep.
pub const DEPTH_MAX: u32 = 24;

/// Byte order of an integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    /// Lowest byte first; bit fields start at the lowest bit.
    Little,
    /// Highest byte first; bit fields start at the highest bit.
    Big,
}

/// Type with its alignment.
#[derive(Debug)]
pub struct Type {
    /// Kind of type.
    pub kind: TypeKind,
    /// Alignment in bits: a power of two.
    pub align: u32,
    /// Nesting depth, including this type.
    pub depth: u32,
}

/// Kind of a type, with the layout of its values.
#[derive(Debug)]
pub enum TypeKind {
    /// Integer.
    Int(Int),
    /// Binary floating point number.
    Float(Float),
    /// Integer with labels for some of its values.
    Enum(Int, Arc<Labels>),
    /// Bytes up to a NUL.
    Text,
    /// Consecutive fields.
    Struct(Vec<Field>),
    /// Option of several, selected by the label of an earlier enumeration.
    Variant(Option<Path>, Vec<Field>),
    /// Elements of a fixed number.
    Array(Arc<Type>, u64),
    /// Elements, with their number in an earlier field.
    Sequence(Arc<Type>, Path),
}

/// Integer of 1 to 64 bits.
#[derive(Clone, Debug)]
pub struct Int {
    /// Width in bits.
    pub bits: u32,
    /// Alignment in bits.
    pub align: u32,
    /// Two's complement.
    pub signed: bool,
    /// Byte order; `None` for the trace's.
    pub order: Option<ByteOrder>,
    /// Base for printing.
    pub base: u8,
    /// Byte of a text.
    pub text: bool,
    /// Clock of which the value is a time.
    pub clock: Option<Arc<str>>,
}

/// IEEE 754 number of 32 or 64 bits.
#[derive(Clone, Debug)]
pub struct Float {
    /// Width in bits: 32 or 64.
    pub bits: u32,
    /// Byte order; `None` for the trace's.
    pub order: Option<ByteOrder>,
}

/// Label of an enumeration, with its range of values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// Name as declared.
    pub name: Arc<str>,
    /// First value.
    pub low: i128,
    /// Last value.
    pub high: i128,
}

/// Labels of an enumeration; they may overlap.
pub type Labels = Vec<Label>;

/// Named part of a structure or variant.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name as declared, with LTTng's prefix `_`.
    pub name: Arc<str>,
    /// Type of the field.
    pub of: Arc<Type>,
}

/// Path `a.b.c` of a tag or length.
pub type Path = Vec<Arc<str>>;

impl Type {
    pub(crate) fn new(kind: TypeKind, align: u32) -> Result<Arc<Self>, String> {
        let depth_inside = match &kind {
            TypeKind::Struct(fields) | TypeKind::Variant(_, fields) => {
                fields.iter().map(|field| field.of.depth).max().unwrap_or(0)
            }
            TypeKind::Array(element, _) | TypeKind::Sequence(element, _) => element.depth,
            _ => 0,
        };
        if depth_inside >= DEPTH_MAX {
            return Err(format!("types nest deeper than {DEPTH_MAX}"));
        }
        if !align.is_power_of_two() || align > 4096 {
            return Err(format!("alignment {align} is not a power of two up to 4096"));
        }
        Ok(Arc::new(Self { kind, align, depth: depth_inside + 1 }))
    }

    pub(crate) fn int(int: Int) -> Result<Arc<Self>, String> {
        let align = int.align;
        Self::new(TypeKind::Int(int), align)
    }

    /// Creates a structure. Its alignment is the maximum of its fields' alignments and `align`.
    pub(crate) fn structure(fields: Vec<Field>, align: u32) -> Result<Arc<Self>, String> {
        let largest = fields.iter().map(|field| field.of.align).max().unwrap_or(1);
        Self::new(TypeKind::Struct(fields), largest.max(align))
    }

    /// Returns true for a byte of text; arrays and sequences of these are strings.
    pub(crate) fn is_text_byte(&self) -> bool {
        matches!(&self.kind, TypeKind::Int(int) if int.text && int.bits == 8 && int.align == 8)
    }
}

/// Returns the name without the `_` that LTTng adds to avoid keywords.
pub fn display_name(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}
