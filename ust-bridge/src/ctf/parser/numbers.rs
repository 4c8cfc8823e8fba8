//! What braces say of integers, floats and strings.

use std::sync::Arc;

use super::super::types::{Float, Int, Kind, Order, Type};
use super::{Parsed, Parser, Value};

impl Parser<'_, '_> {
    pub(super) fn integer(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let attributes = self.block()?;
        let mut int =
            Int { bits: 0, align: 0, signed: false, order: None, base: 10, text: false, clock: None };
        for (key, value) in &attributes {
            match (key.as_str(), value) {
                ("size", Value::Number(bits)) => int.bits = self.narrow(*bits)?,
                ("align", Value::Number(align)) => int.align = self.narrow(*align)?,
                ("signed", value) => int.signed = self.truth(value)?,
                ("byte_order", value) => int.order = self.order(value)?,
                ("base", value) => int.base = self.base(value)?,
                ("encoding", Value::Word(word)) => int.text = word != "none",
                ("encoding", Value::Text(word)) => int.text = word != "none",
                ("map", Value::Word(word)) => int.clock = Some(self.clock(word)?),
                ("size" | "align" | "encoding" | "map", _) => {
                    return self.fail(format!("`{key}` of an integer is not understood"));
                }
                _ => {}
            }
        }
        if !(1..=64).contains(&int.bits) {
            return self.fail(format!("an integer of {} bits: 1 to 64 can be read", int.bits));
        }
        if int.align == 0 {
            int.align = if int.bits.is_multiple_of(8) { 8 } else { 1 };
        }
        self.made(Type::int(int))
    }

    pub(super) fn float(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let attributes = self.block()?;
        let (mut exponent, mut mantissa, mut align, mut order) = (0_u32, 0_u32, 0_u32, None);
        for (key, value) in &attributes {
            match (key.as_str(), value) {
                ("exp_dig", Value::Number(digits)) => exponent = self.narrow(*digits)?,
                ("mant_dig", Value::Number(digits)) => mantissa = self.narrow(*digits)?,
                ("align", Value::Number(number)) => align = self.narrow(*number)?,
                ("byte_order", value) => order = self.order(value)?,
                _ => {}
            }
        }
        let bits = match (exponent, mantissa) {
            (8, 24) => 32,
            (11, 53) => 64,
            _ => {
                return self.fail(format!(
                    "a float of {exponent} and {mantissa} digits: 8 and 24, or 11 and 53, can be read"
                ));
            }
        };
        let align = if align == 0 { 8 } else { align };
        self.made(Type::new(Kind::Float(Float { bits, order }), align))
    }

    pub(super) fn string(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        if self.is_mark('{') {
            self.block()?;
        }
        self.made(Type::new(Kind::Text, 8))
    }

    fn narrow(&self, number: i128) -> Parsed<u32> {
        u32::try_from(number).map_err(|_| (self.at, format!("{number} is out of range")))
    }

    fn truth(&self, value: &Value) -> Parsed<bool> {
        match value {
            Value::Number(number) => Ok(*number != 0),
            Value::Word(word) if ["true", "TRUE"].contains(&word.as_str()) => Ok(true),
            Value::Word(word) if ["false", "FALSE"].contains(&word.as_str()) => Ok(false),
            _ => self.fail("expected true or false"),
        }
    }

    fn order(&self, value: &Value) -> Parsed<Option<Order>> {
        match value {
            Value::Word(word) => match word.as_str() {
                "le" => Ok(Some(Order::Little)),
                "be" | "network" => Ok(Some(Order::Big)),
                "native" => Ok(None),
                _ => self.fail(format!("no byte order is called `{word}`")),
            },
            _ => self.fail("expected a byte order"),
        }
    }

    fn base(&self, value: &Value) -> Parsed<u8> {
        match value {
            Value::Number(base @ (2 | 8 | 10 | 16)) => Ok(*base as u8),
            Value::Word(word) => match word.as_str() {
                "decimal" | "dec" | "d" | "i" | "u" => Ok(10),
                "hexadecimal" | "hex" | "x" | "X" | "p" => Ok(16),
                "octal" | "oct" | "o" => Ok(8),
                "binary" | "b" => Ok(2),
                _ => self.fail(format!("no base is called `{word}`")),
            },
            _ => self.fail("expected a base"),
        }
    }

    /// `clock.NAME.value`
    fn clock(&self, word: &str) -> Parsed<Arc<str>> {
        match word.strip_prefix("clock.").and_then(|rest| rest.strip_suffix(".value")) {
            Some(name) => Ok(Arc::from(name)),
            None => self.fail(format!("`{word}` is no clock's value")),
        }
    }
}
