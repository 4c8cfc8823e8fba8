//! As much of BTF as it takes to find a member's offset (Documentation/bpf/btf.rst).
//!
//! *In*: the bytes of /sys/kernel/btf/vmlinux, or of a module's file beside it, which goes on where that ends. *Out*: offsets
//! of members of named structs, sizes, values of named enums, and which names there are.
//!
//! Why not a crate: the kept reader (btf-rs) builds a table of all 150,000 types and 6 MB of names, 90 to 140 ms of
//! a start that should be short, and its licence (LGPL) does not suit a statically linked binary; aya-obj keeps its
//! own types to itself. One pass that notes where each type begins, and which of them bear a wanted name, is enough.
//!
//! Every read is checked: a cut or nonsensical file gives "not found", never a panic.

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
const KIND_TYPE_TAG: u32 = 18;

/// Deepest nesting of anonymous members, and longest chain of typedefs and qualifiers, that is followed; the
/// kernel's own go to 4.
const NESTING_MAX: usize = 8;

/// A kernel's types.
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// What a module's strings follow: the kernel's.
    base_strings: &'a [u8],
    /// The number of the first type; 0, void, is before all.
    first: u32,
    /// Where each type begins.
    starts: Vec<u32>,
    /// Ids of the structs, unions, enums, typedefs and functions of the wanted names.
    named: HashMap<&'a str, Vec<u32>>,
    /// Ids of the enums without a name.
    nameless: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    at: usize,
    kind: u32,
    members: usize,
    /// This kind puts bit field sizes into its members' offsets.
    bit_fields: bool,
    /// Size or referenced type.
    other: u32,
}

impl<'a> Btf<'a> {
    /// Reads the type section, noting the types whose name `wanted` says yes to. None if this is no BTF of this
    /// machine's byte order.
    pub(crate) fn parse(bytes: &'a [u8], wanted: impl Fn(&str) -> bool) -> Option<Self> {
        Btf::parse_after(bytes, &[], 1, wanted)
    }

    /// The same for a module of the kernel that this is. A member's offset is found only where nothing before it on the way
    /// is of a type of the kernel's own.
    pub(crate) fn parse_module(&self, bytes: &'a [u8], wanted: impl Fn(&str) -> bool) -> Option<Self> {
        let first = self.first.checked_add(u32::try_from(self.starts.len()).ok()?)?;
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
            starts: Vec::new(),
            named: HashMap::new(),
            nameless: Vec::new(),
        };
        let mut at = 0;
        while at < btf.types.len() {
            let entry = btf.entry_at(at)?;
            let id = first.checked_add(u32::try_from(btf.starts.len()).ok()?)?;
            btf.starts.push(u32::try_from(at).ok()?);
            if matches!(entry.kind, KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_TYPEDEF | KIND_FUNC) {
                let name = btf.name(word(btf.types, at)?);
                if !name.is_empty() && wanted(name) {
                    btf.named.entry(name).or_default().push(id);
                } else if name.is_empty() && entry.kind == KIND_ENUM {
                    btf.nameless.push(id);
                }
            }
            at += TYPE + extra(entry.kind, entry.members)?;
        }
        Some(btf)
    }

    /// Whether there is a type or function of this name, which was one of the wanted.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Byte offset of `struct.member.member`; anonymous structs and unions on the way need not be named.
    pub(crate) fn offset(&self, spelling: &str) -> Option<u32> {
        self.bit_offset(spelling).filter(|bits| bits % 8 == 0).map(|bits| bits / 8)
    }

    /// The same in bits, for bit fields.
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

    /// Bytes of the struct or union of this name.
    pub(crate) fn size(&self, of: &str) -> Option<u32> {
        let mut entries = self.named.get(of)?.iter().filter_map(|id| self.entry(*id));
        entries.find(|entry| matches!(entry.kind, KIND_STRUCT | KIND_UNION)).map(|entry| entry.other)
    }

    /// Value of an enumerator, in the enum of this name or in one without.
    pub(crate) fn value(&self, of: &str, enumerator: &str) -> Option<u32> {
        let named = self.named.get(of).into_iter().flatten();
        named.chain(&self.nameless).find_map(|id| {
            let entry = self.entry(*id).filter(|entry| entry.kind == KIND_ENUM)?;
            (0..entry.members).map(|n| entry.at + TYPE + n * 8).find_map(|at| {
                (self.name(word(self.types, at)?) == enumerator).then(|| word(self.types, at + 4)).flatten()
            })
        })
    }

    /// Offset in bits and type of a member.
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

    /// The type behind typedefs and qualifiers.
    fn resolve(&self, id: u32) -> Option<Entry> {
        let mut entry = self.entry(id)?;
        for _ in 0..NESTING_MAX {
            match entry.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    entry = self.entry(entry.other)?;
                }
                _ => return Some(entry),
            }
        }
        None
    }

    fn entry(&self, id: u32) -> Option<Entry> {
        if id == 0 {
            return Some(Entry { at: 0, kind: 0, members: 0, bit_fields: false, other: 0 });
        }
        self.entry_at(*self.starts.get(id.checked_sub(self.first)? as usize)? as usize)
    }

    fn entry_at(&self, at: usize) -> Option<Entry> {
        let info = word(self.types, at + 4)?;
        Some(Entry {
            at,
            kind: info >> 24 & 0x1f,
            members: (info & 0xffff) as usize,
            bit_fields: info >> 31 != 0,
            other: word(self.types, at + 8)?,
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

/// Bytes behind a type's fixed part; none for a kind that came later than this was written, whose length is not
/// known, so that nothing behind it can be read.
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

    /// `struct s { int a; union { long b; struct { int c; int d; }; }; }` by hand.
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

    /// `struct m { int a; int e; }` of a module: `a` is one of the kernel's strings, `m` and `e` are its own.
    fn module() -> Vec<u8> {
        let strings = b"m\0e\0";
        let types: Vec<u8> =
            [15, KIND_STRUCT << 24 | 2, 8, 7, 1, 0, 17, 1, 32u32].map(u32::to_ne_bytes).concat();
        let header = [HEADER as u32, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let header = header.map(u32::to_ne_bytes).concat();
        [&MAGIC.to_ne_bytes()[..], &[1, 0], &header, &types, strings].concat()
    }

    #[test]
    fn a_module_goes_on_where_the_kernel_ends() {
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
    fn enumerators_are_found_in_enums_without_a_name() {
        let bytes = sample();
        let btf = Btf::parse(&bytes, |name| name == "s").expect("a sample of BTF");
        assert_eq!(btf.value("any", "d"), Some(7));
        assert_eq!(btf.value("any", "e"), None);
        assert_eq!(btf.value("s", "a"), None, "a member is no enumerator");
    }

    proptest! {
        #[test]
        fn a_damaged_file_never_panics(at in 0usize..200, value: u8, cut in 0usize..200) {
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
