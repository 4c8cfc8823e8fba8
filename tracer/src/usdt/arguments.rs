//! What a probe's note says of its arguments: `8@%rax -4@-20(%rbp) 8@$5`, as an assembler writes operands.
//!
//! *In*: the note's words. *Out*: for each argument how many bytes, with a sign or without, and where: a constant, a register, or
//! memory at a register (and an index) and so much behind it. *Invariant*: a word that is not understood refuses the probe: a value
//! read from elsewhere would be a lie. Not understood are floats and segments. A place by a symbol (`-4@44+Stats(%rip)`, as
//! PostgreSQL's checkpoint__done has) is known and not read: a program that is stripped does not say where its symbols are.
//!
//! The forms are those of systemtap's sys/sdt.h and of gdb's stap-probe.c; offsets of registers are those of the kernel's
//! `struct pt_regs` (arch/x86/include/asm/ptrace.h, arch/arm64/include/uapi/asm/ptrace.h).

use blkkin_probe_abi::hit::{ARGUMENTS_MAX, ArgumentSpec, FROM_CONSTANT, FROM_MEMORY, FROM_REGISTER};

/// Why arguments cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// One is written in a way that is not known.
    #[error("`{0}` is no form that is known")]
    Form(String),
    /// There are too many.
    #[error("it has more than {ARGUMENTS_MAX}")]
    TooMany,
    /// The same probe has others at another place.
    #[error("the program has the probe several times, with arguments at different places")]
    Differ,
}

/// One argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Where it is.
    pub spec: ArgumentSpec,
    /// Its bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// It may be negative.
    pub signed: bool,
}

impl Argument {
    /// Whether it is somewhere where it can be read.
    pub fn is_read(&self) -> bool {
        self.spec.from != 0
    }

    /// What a word is whose lower bytes it has.
    pub fn value(&self, word: u64) -> i128 {
        let unused = 64 - 8 * u32::from(self.bytes);
        if self.signed {
            i128::from((word << unused).cast_signed() >> unused)
        } else {
            i128::from(word << unused >> unused)
        }
    }
}

/// Reads all of them.
pub fn parse(words: &str) -> Result<Vec<Argument>, ArgumentsError> {
    let all: Vec<Argument> = words
        .split_whitespace()
        .map(|word| one(word).ok_or_else(|| ArgumentsError::Form(word.to_owned())))
        .collect::<Result<_, _>>()?;
    if all.len() > ARGUMENTS_MAX { Err(ArgumentsError::TooMany) } else { Ok(all) }
}

fn one(word: &str) -> Option<Argument> {
    let (size, place) = word.split_once('@')?;
    let size: i8 = size.parse().ok()?;
    let bytes = size.unsigned_abs();
    if !matches!(bytes, 1 | 2 | 4 | 8) {
        return None;
    }
    // Of 71 probes of PostgreSQL one has such.
    if place.ends_with("(%rip)") {
        return Some(Argument { spec: ArgumentSpec::default(), bytes, signed: size < 0 });
    }
    let spec = machine::place(place)?;
    Some(Argument { spec: ArgumentSpec { bytes: bytes.into(), ..spec }, bytes, signed: size < 0 })
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

fn constant(value: i64) -> ArgumentSpec {
    ArgumentSpec { from: FROM_CONSTANT, value, ..ArgumentSpec::default() }
}

#[cfg(any(target_arch = "x86_64", test))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "tested everywhere"))]
mod x86 {
    use super::*;

    /// `$5`, `%rax`, `-20(%rbp)`, `8(%rax,%rbx,4)`.
    pub(super) fn place(text: &str) -> Option<ArgumentSpec> {
        if let Some(value) = text.strip_prefix('$') {
            return number(value).map(constant);
        }
        if let Some(name) = text.strip_prefix('%') {
            let (register, shift) = register(name)?;
            let (register, shift) = (u32::from(register), u32::from(shift));
            return Some(ArgumentSpec { from: FROM_REGISTER, register, shift, ..ArgumentSpec::default() });
        }
        let (offset, inside) = text.strip_suffix(')')?.split_once('(')?;
        let value = if offset.is_empty() { 0 } else { number(offset)? };
        let mut parts = inside.split(',');
        let base = whole(parts.next()?)?;
        let (index, scale) = match parts.next() {
            None => (0, 0),
            Some(index) => (whole(index)?, parts.next().map_or(Some(1), |scale| scale.parse().ok())?),
        };
        if parts.next().is_some() || !matches!(scale, 0 | 1 | 2 | 4 | 8) {
            return None;
        }
        Some(ArgumentSpec {
            from: FROM_MEMORY,
            register: base,
            index,
            scale,
            value,
            ..ArgumentSpec::default()
        })
    }

    /// A register of 64 bits, which an address is of.
    fn whole(text: &str) -> Option<u32> {
        let name = text.trim().strip_prefix('%')?;
        let known = NAMES.iter().find(|(names, _)| names[0] == name)?;
        Some(known.1.into())
    }

    /// Offset in struct pt_regs, and how many bits the part lies up.
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

    /// `5`, `x0`, `w1`, `[sp, 16]`, `[x0]`.
    pub(super) fn place(text: &str) -> Option<ArgumentSpec> {
        if let Some(value) = number(text) {
            return Some(constant(value));
        }
        if let Some(inside) = text.strip_prefix('[') {
            let inside = inside.strip_suffix(']')?;
            let (base, offset) = inside.split_once(',').unwrap_or((inside, "0"));
            let (register, value) = (register(base.trim())?, number(offset.trim())?);
            return Some(ArgumentSpec { from: FROM_MEMORY, register, value, ..ArgumentSpec::default() });
        }
        let register = register(text)?;
        Some(ArgumentSpec { from: FROM_REGISTER, register, ..ArgumentSpec::default() })
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
    fn operands_of_x86_are_places() {
        let spec = ArgumentSpec::default();
        for (text, wanted) in [
            ("$-5", ArgumentSpec { from: FROM_CONSTANT, value: -5, ..spec }),
            ("%rsi", ArgumentSpec { from: FROM_REGISTER, register: 104, ..spec }),
            ("%r10d", ArgumentSpec { from: FROM_REGISTER, register: 56, ..spec }),
            ("%ah", ArgumentSpec { from: FROM_REGISTER, register: 80, shift: 8, ..spec }),
            ("-144(%rbp)", ArgumentSpec { from: FROM_MEMORY, register: 32, value: -144, ..spec }),
            ("(%rax)", ArgumentSpec { from: FROM_MEMORY, register: 80, ..spec }),
            (
                "16(%rax,%rcx,8)",
                ArgumentSpec { from: FROM_MEMORY, register: 80, index: 88, scale: 8, value: 16, ..spec },
            ),
        ] {
            assert_eq!(x86::place(text), Some(wanted), "{text}");
        }
        for bad in
            ["", "%", "%xmm0", "rax", "5", "counter(%rip)", "4(%eax)", "(%rax,%rbx,3)", "%fs:8", "(%rax"]
        {
            assert_eq!(x86::place(bad), None, "{bad}");
        }
    }

    #[test]
    fn operands_of_arm_are_places() {
        let spec = ArgumentSpec::default();
        for (text, wanted) in [
            ("5", ArgumentSpec { from: FROM_CONSTANT, value: 5, ..spec }),
            ("w19", ArgumentSpec { from: FROM_REGISTER, register: 152, ..spec }),
            ("[sp, 16]", ArgumentSpec { from: FROM_MEMORY, register: 248, value: 16, ..spec }),
        ] {
            assert_eq!(arm::place(text), Some(wanted), "{text}");
        }
        assert_eq!(arm::place("x31"), None);
        assert_eq!(arm::place("[x0, x1]"), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_value_has_its_size_and_sign() {
        let [four, signed] = parse("4@%eax -4@%eax").unwrap()[..] else { panic!() };
        assert_eq!(four.value(0xdead_beef_ffff_ffff), 0xffff_ffff);
        assert_eq!(signed.value(0xdead_beef_ffff_ffff), -1);
        assert_eq!(parse("8@%rax -8@%rbx"), parse(" 8@%rax\t-8@%rbx "));
        let [by_symbol] = parse("-4@44+Stats(%rip)").unwrap()[..] else { panic!() };
        assert!(!by_symbol.is_read() && four.is_read());
        assert_eq!(parse("3@%rax"), Err(ArgumentsError::Form("3@%rax".into())));
        assert_eq!(parse("-128@%rax"), Err(ArgumentsError::Form("-128@%rax".into())));
        assert_eq!(parse("8f@%xmm0"), Err(ArgumentsError::Form("8f@%xmm0".into())));
        assert_eq!(parse(&"8@%rax ".repeat(ARGUMENTS_MAX + 1)), Err(ArgumentsError::TooMany));
    }

    proptest! {
        #[test]
        fn any_words_are_arguments_or_an_error(words in "[-0-9@%$(),a-z \\[\\]]{0,60}") {
            let _ = parse(&words);
            let _ = arm::place(&words);
        }
    }
}
