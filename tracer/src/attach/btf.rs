//! Minimal BTF parser (Documentation/bpf/btf.rst).
//!
//! *In*: the bytes of /sys/kernel/btf/vmlinux, or of a module's file next to it, whose ids and
//! strings continue the kernel's. *Out*: offsets of struct members, sizes, values of enumerators,
//! and the existence of types and functions.
//!
//! *Rejected*: crates. The maintained reader (btf-rs) builds a table of all 150,000 types and 6 MB
//! of names, which adds 90 to 140 ms to a start that should be short, and its licence (LGPL) does
//! not suit a statically linked binary. aya-obj keeps its types private. One pass that records
//! where each type begins, and which types have a wanted name, is enough.
//!
//! *Invariant*: every read is checked. A truncated or corrupt file yields "not found", never a
//! panic.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
const TYPE: usize = 12;
const MEMBER: usize = 12;

const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_TYPE_TAG: u32 = 18;

/// Maximum nesting of anonymous members, and maximum chain of typedefs and qualifiers, that is
/// followed. The kernel's own types reach 4.
const NESTING_MAX: usize = 8;

/// Types of the kernel or of one module.
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// String section of the kernel, which a module's string offsets follow.
    base_strings: &'a [u8],
    /// Id of the first type. Id 0, void, has no entry.
    first: u32,
    /// Offset of each type in the type section.
    type_offsets: Vec<u32>,
    /// Ids of the structs, unions, enums, typedefs and functions with a wanted name.
    named: HashMap<&'a str, Vec<u32>>,
    /// Ids of the unnamed enums.
    unnamed_enums: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    at: usize,
    kind: u32,
    members: usize,
    /// True if member offsets of this type contain bit field sizes.
    bit_fields: bool,
    /// Size or referenced type.
    size_or_type: u32,
}

impl<'a> Btf<'a> {
    /// Parses the type section and indexes the types whose name `wanted` accepts. Returns none if
    /// the bytes are not BTF in this machine's byte order.
    pub(crate) fn parse(bytes: &'a [u8], wanted: impl Fn(&str) -> bool) -> Option<Self> {
        Btf::parse_after(bytes, &[], 1, wanted)
    }

    /// Parses a module of this kernel. A member's offset is found only if no type on the path to it
    /// belongs to the kernel itself.
    pub(crate) fn parse_module(&self, bytes: &'a [u8], wanted: impl Fn(&str) -> bool) -> Option<Self> {
        let first = self.first.checked_add(u32::try_from(self.type_offsets.len()).ok()?)?;
        Btf::parse_after(bytes, self.strings, first, wanted)
    }

    fn parse_after(
        bytes: &'a [u8],
        base_strings: &'a [u8],
        first: u32,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        if u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let section = |offset: usize| {
            let start = header.checked_add(word(bytes, offset)? as usize)?;
            bytes.get(start..start.checked_add(word(bytes, offset + 4)? as usize)?)
        };
        if header < HEADER {
            return None;
        }
        let mut btf = Btf {
            types: section(8)?,
            strings: section(16)?,
            base_strings,
            first,
            type_offsets: Vec::new(),
            named: HashMap::new(),
            unnamed_enums: Vec::new(),
        };
        let mut at = 0;
        while at < btf.types.len() {
            let entry = btf.entry_at(at)?;
            let id = first.checked_add(u32::try_from(btf.type_offsets.len()).ok()?)?;
            btf.type_offsets.push(u32::try_from(at).ok()?);
            if matches!(entry.kind, KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_TYPEDEF | KIND_FUNC) {
                let name = btf.name(word(btf.types, at)?);
                if !name.is_empty() && wanted(name) {
                    btf.named.entry(name).or_default().push(id);
                } else if name.is_empty() && entry.kind == KIND_ENUM {
                    btf.unnamed_enums.push(id);
                }
            }
            at += TYPE + extra(entry.kind, entry.members)?;
        }
        Some(btf)
    }

    /// Returns whether a type or function of this name exists; the name must have been wanted.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Returns the byte offset of `struct.member.member`; anonymous structs and unions on the path
    /// are implicit.
    pub(crate) fn offset(&self, spelling: &str) -> Option<u32> {
        self.bit_offset(spelling).filter(|bits| bits % 8 == 0).map(|bits| bits / 8)
    }

    /// Returns the bit offset of a member, for bit fields.
    pub(crate) fn bit_offset(&self, spelling: &str) -> Option<u32> {
        let (of, members) = spelling.split_once('.')?;
        self.named.get(of)?.iter().find_map(|id| {
            let (mut within, mut bits) = (*id, 0);
            for member in members.split('.') {
                let (at, inner) = self.member(self.resolve(within)?, member, NESTING_MAX)?;
                bits += at;
                within = inner;
            }
            Some(bits)
        })
    }

    /// Returns the size in bytes of a struct or union.
    pub(crate) fn size(&self, of: &str) -> Option<u32> {
        let mut entries = self.named.get(of)?.iter().filter_map(|id| self.entry(*id));
        entries.find(|entry| matches!(entry.kind, KIND_STRUCT | KIND_UNION)).map(|entry| entry.size_or_type)
    }

    /// Returns the value of an enumerator, in the enum of this name or in an unnamed enum.
    pub(crate) fn value(&self, of: &str, enumerator: &str) -> Option<u32> {
        let named = self.named.get(of).into_iter().flatten();
        named.chain(&self.unnamed_enums).find_map(|id| {
            let entry = self.entry(*id).filter(|entry| entry.kind == KIND_ENUM)?;
            (0..entry.members).map(|n| entry.at + TYPE + n * 8).find_map(|at| {
                (self.name(word(self.types, at)?) == enumerator).then(|| word(self.types, at + 4)).flatten()
            })
        })
    }

    /// Returns the number of parameters of the function that a typedef's pointer leads to.
    pub(crate) fn function_parameters(&self, typedef: &str) -> Option<u32> {
        let mut typedefs = self.named.get(typedef)?.iter().filter_map(|id| self.resolve(*id));
        let pointer = typedefs.find(|entry| entry.kind == KIND_PTR)?;
        let function = self.entry(pointer.size_or_type)?;
        (function.kind == KIND_FUNC_PROTO).then_some(function.members as u32)
    }

    /// Returns the bit offset and type id of a member.
    fn member(&self, within: Entry, name: &str, nesting: usize) -> Option<(u32, u32)> {
        if !matches!(within.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        for n in 0..within.members {
            let at = within.at + TYPE + n * MEMBER;
            let named = self.name(word(self.types, at)?);
            let offset = word(self.types, at + 8)?;
            let offset = if within.bit_fields { offset & 0xff_ffff } else { offset };
            if named == name {
                return Some((offset, word(self.types, at + 4)?));
            }
            if named.is_empty() && nesting > 0 {
                let inner = self.resolve(word(self.types, at + 4)?);
                let found = inner.and_then(|inner| self.member(inner, name, nesting - 1));
                if let Some((deeper, found)) = found {
                    return Some((offset + deeper, found));
                }
            }
        }
        None
    }

    /// Skips typedefs and qualifiers.
    fn resolve(&self, id: u32) -> Option<Entry> {
        let mut entry = self.entry(id)?;
        for _ in 0..NESTING_MAX {
            match entry.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    entry = self.entry(entry.size_or_type)?;
                }
                _ => return Some(entry),
            }
        }
        None
    }

    fn entry(&self, id: u32) -> Option<Entry> {
        if id == 0 {
            return Some(Entry { at: 0, kind: 0, members: 0, bit_fields: false, size_or_type: 0 });
        }
        self.entry_at(*self.type_offsets.get(id.checked_sub(self.first)? as usize)? as usize)
    }

    fn entry_at(&self, at: usize) -> Option<Entry> {
        let info = word(self.types, at + 4)?;
        Some(Entry {
            at,
            kind: info >> 24 & 0x1f,
            members: (info & 0xffff) as usize,
            bit_fields: info >> 31 != 0,
            size_or_type: word(self.types, at + 8)?,
        })
    }

    fn name(&self, offset: u32) -> &'a str {
        let own = (offset as usize).checked_sub(self.base_strings.len());
        let found = match own {
            Some(own) => self.strings.get(own..),
            None => self.base_strings.get(offset as usize..),
        };
        let bytes = found.unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&bytes[..end]).unwrap_or_default()
    }
}

/// Bytes after a type's fixed part. None for a kind newer than this parser: its length is unknown,
/// so nothing after it can be read.
fn extra(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        0 | KIND_PTR | 7 | KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_FUNC | 16
        | KIND_TYPE_TAG => 0,
        1 | 14 | 17 => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | 15 | 19 => members * 12,
        KIND_ENUM | 13 => members * 8,
        _ => return None,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hand-written BTF of `struct s { int a; union { long b; struct { int c; int d; }; }; }`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0s\0a\0b\0c\0d\0";
        let mut types = Vec::new();
        let mut put = |words: &[u32]| types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        put(&[1, 1 << 24, 4, 32]); // 1: int
        put(&[0, KIND_STRUCT << 24 | 2, 8, 11, 1, 0, 13, 1, 32]); // 2: struct { c; d }
        put(&[0, KIND_UNION << 24 | 2, 8, 9, 1, 0, 0, 2, 0]); // 3: union { b; (2) }
        put(&[5, KIND_STRUCT << 24 | 2, 16, 7, 1, 0, 0, 3, 64]); // 4: struct s
        put(&[0, KIND_ENUM << 24 | 2, 4, 11, 0, 13, 7]); // 5: enum { c, d = 7 }
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        for word in [HEADER as u32, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn anonymous_members_are_searched() {
        let bytes = sample();
        let btf = Btf::parse(&bytes, |name| name == "s").expect("a sample of BTF");
        assert_eq!(btf.offset("s.a"), Some(0));
        assert_eq!(btf.offset("s.b"), Some(8));
        assert_eq!(btf.offset("s.d"), Some(12));
        assert_eq!(btf.offset("s.e"), None);
        assert_eq!(btf.offset("t.a"), None);
    }

    /// Hand-written BTF of a module's `struct m { int a; int e; }`: `a` is one of the kernel's
    /// strings, `m` and `e` are the module's.
    fn module() -> Vec<u8> {
        let strings = b"m\0e\0";
        let types: Vec<u8> =
            [15, KIND_STRUCT << 24 | 2, 8, 7, 1, 0, 17, 1, 32u32].map(u32::to_ne_bytes).concat();
        let header = [HEADER as u32, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let header = header.map(u32::to_ne_bytes).concat();
        [&MAGIC.to_ne_bytes()[..], &[1, 0], &header, &types, strings].concat()
    }

    #[test]
    fn module_ids_continue_those_of_the_kernel() {
        let (kernel, module) = (sample(), module());
        let kernel = Btf::parse(&kernel, |name| name == "s").expect("a sample of BTF");
        let module = kernel.parse_module(&module, |name| name == "m").expect("a sample of a module's");
        assert_eq!(
            (module.offset("m.a"), module.offset("m.e"), module.size("m")),
            (Some(0), Some(4), Some(8))
        );
        assert_eq!((module.offset("s.a"), kernel.size("s")), (None, Some(16)));
    }

    #[test]
    fn enumerators_of_unnamed_enums_are_found() {
        let bytes = sample();
        let btf = Btf::parse(&bytes, |name| name == "s").expect("a sample of BTF");
        assert_eq!(btf.value("any", "d"), Some(7));
        assert_eq!(btf.value("any", "e"), None);
        assert_eq!(btf.value("s", "a"), None, "a member is no enumerator");
    }

    proptest! {
        #[test]
        fn corrupt_file_never_panics(at in 0usize..200, value: u8, cut in 0usize..200) {
            let mut bytes = sample();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            bytes.truncate(bytes.len().saturating_sub(cut % 40));
            if let Some(btf) = Btf::parse(&bytes, |_| true) {
                let _ = (btf.offset("s.d"), btf.value("s", "a"));
            }
        }
    }
}
