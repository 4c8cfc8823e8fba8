//! Attributes of integers, floats and strings.

use std::sync::Arc;

use super::super::types::{ByteOrder, Float, Int, Type, TypeKind};
use super::{BlockValue, Parsed, Parser};

impl Parser<'_, '_> {
    pub(super) fn integer(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let attributes = self.block()?;
        let mut int =
            Int { bits: 0, align: 0, signed: false, order: None, base: 10, text: false, clock: None };
        for (key, value) in &attributes {
            match (key.as_str(), value) {
                ("size", BlockValue::Number(bits)) => int.bits = self.narrow(*bits)?,
                ("align", BlockValue::Number(align)) => int.align = self.narrow(*align)?,
                ("signed", value) => int.signed = self.boolean(value)?,
                ("byte_order", value) => int.order = self.order(value)?,
                ("base", value) => int.base = self.base(value)?,
                ("encoding", BlockValue::Word(word)) => int.text = word != "none",
                ("encoding", BlockValue::Text(word)) => int.text = word != "none",
                ("map", BlockValue::Word(word)) => int.clock = Some(self.clock(word)?),
                ("size" | "align" | "encoding" | "map", _) => {
                    return self.fail(format!("invalid `{key}` of an integer"));
                }
                _ => {}
            }
        }
        if !(1..=64).contains(&int.bits) {
            return self.fail(format!("an integer of {} bits is not supported, only 1 to 64", int.bits));
        }
        if int.align == 0 {
            int.align = if int.bits.is_multiple_of(8) { 8 } else { 1 };
        }
        self.type_or_error(Type::int(int))
    }

    pub(super) fn float(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let attributes = self.block()?;
        let (mut exponent, mut mantissa, mut align, mut order) = (0_u32, 0_u32, 0_u32, None);
        for (key, value) in &attributes {
            match (key.as_str(), value) {
                ("exp_dig", BlockValue::Number(digits)) => exponent = self.narrow(*digits)?,
                ("mant_dig", BlockValue::Number(digits)) => mantissa = self.narrow(*digits)?,
                ("align", BlockValue::Number(number)) => align = self.narrow(*number)?,
                ("byte_order", value) => order = self.order(value)?,
                _ => {}
            }
        }
        let bits = match (exponent, mantissa) {
            (8, 24) => 32,
            (11, 53) => 64,
            _ => {
                return self.fail(format!(
                    "a float of {exponent} and {mantissa} digits is not supported, only 8 and 24, or 11 and 53"
                ));
            }
        };
        let align = if align == 0 { 8 } else { align };
        self.type_or_error(Type::new(TypeKind::Float(Float { bits, order }), align))
    }

    pub(super) fn string(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        if self.is_punctuation('{') {
            self.block()?;
        }
        self.type_or_error(Type::new(TypeKind::Text, 8))
    }

    fn narrow(&self, number: i128) -> Parsed<u32> {
        u32::try_from(number).map_err(|_| (self.at, format!("{number} is out of range")))
    }

    fn boolean(&self, value: &BlockValue) -> Parsed<bool> {
        match value {
            BlockValue::Number(number) => Ok(*number != 0),
            BlockValue::Word(word) if ["true", "TRUE"].contains(&word.as_str()) => Ok(true),
            BlockValue::Word(word) if ["false", "FALSE"].contains(&word.as_str()) => Ok(false),
            _ => self.fail("expected true or false"),
        }
    }

    fn order(&self, value: &BlockValue) -> Parsed<Option<ByteOrder>> {
        match value {
            BlockValue::Word(word) => match word.as_str() {
                "le" => Ok(Some(ByteOrder::Little)),
                "be" | "network" => Ok(Some(ByteOrder::Big)),
                "native" => Ok(None),
                _ => self.fail(format!("unknown byte order `{word}`")),
            },
            _ => self.fail("expected a byte order"),
        }
    }

    fn base(&self, value: &BlockValue) -> Parsed<u8> {
        match value {
            BlockValue::Number(base @ (2 | 8 | 10 | 16)) => Ok(*base as u8),
            BlockValue::Word(word) => match word.as_str() {
                "decimal" | "dec" | "d" | "i" | "u" => Ok(10),
                "hexadecimal" | "hex" | "x" | "X" | "p" => Ok(16),
                "octal" | "oct" | "o" => Ok(8),
                "binary" | "b" => Ok(2),
                _ => self.fail(format!("unknown base `{word}`")),
            },
            _ => self.fail("expected a base"),
        }
    }

    /// Parses `clock.NAME.value`.
    fn clock(&self, word: &str) -> Parsed<Arc<str>> {
        match word.strip_prefix("clock.").and_then(|rest| rest.strip_suffix(".value")) {
            Some(name) => Ok(Arc::from(name)),
            None => self.fail(format!("`{word}` is not a clock's value")),
        }
    }
}
