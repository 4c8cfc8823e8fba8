//! Parser of USDT argument descriptions: `8@%rax -4@-20(%rbp) 8@$5`, in assembler operand syntax.
//!
//! *In*: the note's argument string. *Out*: for each argument its size, signedness and location: a
//! constant, a register, or memory at a register (plus index) and an offset. *Invariant*: an
//! unknown form rejects the probe, since a value read from elsewhere would be wrong. Floats and
//! segments are not supported. A location by symbol (`-4@44+Stats(%rip)`, as in PostgreSQL's
//! checkpoint__done) is accepted and not read: a stripped program does not reveal its symbols'
//! addresses.
//!
//! The forms are those of systemtap's sys/sdt.h and of gdb's stap-probe.c. Register offsets are
//! those of the kernel's `struct pt_regs` (arch/x86/include/asm/ptrace.h,
//! arch/arm64/include/uapi/asm/ptrace.h).

use blkkin_probe_abi::usdt::{FROM_CONSTANT, FROM_MEMORY, FROM_REGISTER, USDT_ARGS_MAX, UsdtArgSpec};

/// Reason why arguments cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// Unknown form.
    #[error("unknown argument form `{0}`")]
    Form(String),
    /// More arguments than supported.
    #[error("more than {USDT_ARGS_MAX} arguments")]
    TooMany,
    /// Instances of the probe differ in their arguments.
    #[error("the probe occurs several times, with different arguments")]
    Differ,
}

/// An argument of a probe: its location, size and signedness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Location.
    pub spec: UsdtArgSpec,
    /// Size in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// True if the value is signed.
    pub signed: bool,
}

impl Argument {
    /// Returns whether the location is readable.
    pub fn is_readable(&self) -> bool {
        self.spec.from != 0
    }

    /// Extracts the argument from the word that was read.
    pub fn value(&self, word: u64) -> i128 {
        let unused = 64 - 8 * u32::from(self.bytes);
        if self.signed {
            i128::from((word << unused).cast_signed() >> unused)
        } else {
            i128::from(word << unused >> unused)
        }
    }
}

/// Parses all arguments.
pub fn parse(words: &str) -> Result<Vec<Argument>, ArgumentsError> {
    let all: Vec<Argument> = words
        .split_whitespace()
        .map(|word| parse_one(word).ok_or_else(|| ArgumentsError::Form(word.to_owned())))
        .collect::<Result<_, _>>()?;
    if all.len() > USDT_ARGS_MAX { Err(ArgumentsError::TooMany) } else { Ok(all) }
}

fn parse_one(word: &str) -> Option<Argument> {
    let (size, location) = word.split_once('@')?;
    let size: i8 = size.parse().ok()?;
    let bytes = size.unsigned_abs();
    if !matches!(bytes, 1 | 2 | 4 | 8) {
        return None;
    }
    // One of PostgreSQL's 71 probes has such an operand.
    if location.ends_with("(%rip)") {
        return Some(Argument { spec: UsdtArgSpec::default(), bytes, signed: size < 0 });
    }
    let spec = machine::operand(location)?;
    Some(Argument { spec: UsdtArgSpec { bytes: bytes.into(), ..spec }, bytes, signed: size < 0 })
}

fn number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    let value = value.cast_signed();
    Some(if negative { value.wrapping_neg() } else { value })
}

fn constant(value: i64) -> UsdtArgSpec {
    UsdtArgSpec { from: FROM_CONSTANT, value, ..UsdtArgSpec::default() }
}

#[cfg(any(target_arch = "x86_64", test))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "tested everywhere"))]
mod x86 {
    use super::*;

    /// Parses `$5`, `%rax`, `-20(%rbp)` and `8(%rax,%rbx,4)`.
    pub(super) fn operand(text: &str) -> Option<UsdtArgSpec> {
        if let Some(value) = text.strip_prefix('$') {
            return number(value).map(constant);
        }
        if let Some(name) = text.strip_prefix('%') {
            let (register, shift) = register(name)?;
            let (register, shift) = (u32::from(register), u32::from(shift));
            return Some(UsdtArgSpec { from: FROM_REGISTER, register, shift, ..UsdtArgSpec::default() });
        }
        let (offset, inside) = text.strip_suffix(')')?.split_once('(')?;
        let value = if offset.is_empty() { 0 } else { number(offset)? };
        let mut parts = inside.split(',');
        let base = base_register(parts.next()?)?;
        let (index, scale) = match parts.next() {
            None => (0, 0),
            Some(index) => (base_register(index)?, parts.next().map_or(Some(1), |scale| scale.parse().ok())?),
        };
        if parts.next().is_some() || !matches!(scale, 0 | 1 | 2 | 4 | 8) {
            return None;
        }
        Some(UsdtArgSpec { from: FROM_MEMORY, register: base, index, scale, value, ..UsdtArgSpec::default() })
    }

    /// Returns the offset of a 64-bit register, the only kind in an address.
    fn base_register(text: &str) -> Option<u32> {
        let name = text.trim().strip_prefix('%')?;
        let known = NAMES.iter().find(|(names, _)| names[0] == name)?;
        Some(known.1.into())
    }

    /// Returns the offset in struct pt_regs, and the bit position of the part.
    fn register(name: &str) -> Option<(u16, u8)> {
        if let Some((_, offset)) = NAMES.iter().find(|(names, _)| names.contains(&name)) {
            return Some((*offset, 0));
        }
        let high = ["ah", "bh", "ch", "dh"].iter().position(|high| *high == name)?;
        Some(([80, 40, 88, 96][high], 8))
    }

    const NAMES: [([&str; 4], u16); 16] = [
        (["r15", "r15d", "r15w", "r15b"], 0),
        (["r14", "r14d", "r14w", "r14b"], 8),
        (["r13", "r13d", "r13w", "r13b"], 16),
        (["r12", "r12d", "r12w", "r12b"], 24),
        (["rbp", "ebp", "bp", "bpl"], 32),
        (["rbx", "ebx", "bx", "bl"], 40),
        (["r11", "r11d", "r11w", "r11b"], 48),
        (["r10", "r10d", "r10w", "r10b"], 56),
        (["r9", "r9d", "r9w", "r9b"], 64),
        (["r8", "r8d", "r8w", "r8b"], 72),
        (["rax", "eax", "ax", "al"], 80),
        (["rcx", "ecx", "cx", "cl"], 88),
        (["rdx", "edx", "dx", "dl"], 96),
        (["rsi", "esi", "si", "sil"], 104),
        (["rdi", "edi", "di", "dil"], 112),
        (["rsp", "esp", "sp", "spl"], 152),
    ];
}

#[cfg(any(target_arch = "aarch64", test))]
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "tested everywhere"))]
mod arm {
    use super::*;

    /// Parses `5`, `x0`, `w1`, `[sp, 16]` and `[x0]`.
    pub(super) fn operand(text: &str) -> Option<UsdtArgSpec> {
        if let Some(value) = number(text) {
            return Some(constant(value));
        }
        if let Some(inside) = text.strip_prefix('[') {
            let inside = inside.strip_suffix(']')?;
            let (base, offset) = inside.split_once(',').unwrap_or((inside, "0"));
            let (register, value) = (register(base.trim())?, number(offset.trim())?);
            return Some(UsdtArgSpec { from: FROM_MEMORY, register, value, ..UsdtArgSpec::default() });
        }
        let register = register(text)?;
        Some(UsdtArgSpec { from: FROM_REGISTER, register, ..UsdtArgSpec::default() })
    }

    fn register(name: &str) -> Option<u32> {
        if name == "sp" {
            return Some(31 * 8);
        }
        let number: u32 = name.strip_prefix(['x', 'w'])?.parse().ok()?;
        (number <= 30).then_some(number * 8)
    }
}

#[cfg(target_arch = "aarch64")]
use arm as machine;
#[cfg(target_arch = "x86_64")]
use x86 as machine;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn x86_operands_are_parsed() {
        let spec = UsdtArgSpec::default();
        for (text, wanted) in [
            ("$-5", UsdtArgSpec { from: FROM_CONSTANT, value: -5, ..spec }),
            ("%rsi", UsdtArgSpec { from: FROM_REGISTER, register: 104, ..spec }),
            ("%r10d", UsdtArgSpec { from: FROM_REGISTER, register: 56, ..spec }),
            ("%ah", UsdtArgSpec { from: FROM_REGISTER, register: 80, shift: 8, ..spec }),
            ("-144(%rbp)", UsdtArgSpec { from: FROM_MEMORY, register: 32, value: -144, ..spec }),
            ("(%rax)", UsdtArgSpec { from: FROM_MEMORY, register: 80, ..spec }),
            (
                "16(%rax,%rcx,8)",
                UsdtArgSpec { from: FROM_MEMORY, register: 80, index: 88, scale: 8, value: 16, ..spec },
            ),
        ] {
            assert_eq!(x86::operand(text), Some(wanted), "{text}");
        }
        for bad in
            ["", "%", "%xmm0", "rax", "5", "counter(%rip)", "4(%eax)", "(%rax,%rbx,3)", "%fs:8", "(%rax"]
        {
            assert_eq!(x86::operand(bad), None, "{bad}");
        }
    }

    #[test]
    fn arm_operands_are_parsed() {
        let spec = UsdtArgSpec::default();
        for (text, wanted) in [
            ("5", UsdtArgSpec { from: FROM_CONSTANT, value: 5, ..spec }),
            ("w19", UsdtArgSpec { from: FROM_REGISTER, register: 152, ..spec }),
            ("[sp, 16]", UsdtArgSpec { from: FROM_MEMORY, register: 248, value: 16, ..spec }),
        ] {
            assert_eq!(arm::operand(text), Some(wanted), "{text}");
        }
        assert_eq!(arm::operand("x31"), None);
        assert_eq!(arm::operand("[x0, x1]"), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn values_have_their_size_and_sign() {
        let [four, signed] = parse("4@%eax -4@%eax").unwrap()[..] else { panic!() };
        assert_eq!(four.value(0xdead_beef_ffff_ffff), 0xffff_ffff);
        assert_eq!(signed.value(0xdead_beef_ffff_ffff), -1);
        assert_eq!(parse("8@%rax -8@%rbx"), parse(" 8@%rax\t-8@%rbx "));
        let [by_symbol] = parse("-4@44+Stats(%rip)").unwrap()[..] else { panic!() };
        assert!(!by_symbol.is_readable() && four.is_readable());
        assert_eq!(parse("3@%rax"), Err(ArgumentsError::Form("3@%rax".into())));
        assert_eq!(parse("-128@%rax"), Err(ArgumentsError::Form("-128@%rax".into())));
        assert_eq!(parse("8f@%xmm0"), Err(ArgumentsError::Form("8f@%xmm0".into())));
        assert_eq!(parse(&"8@%rax ".repeat(USDT_ARGS_MAX + 1)), Err(ArgumentsError::TooMany));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(words in "[-0-9@%$(),a-z \\[\\]]{0,60}") {
            let _ = parse(&words);
            let _ = arm::operand(&words);
        }
    }
}
