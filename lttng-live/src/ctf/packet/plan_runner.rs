//! Execution of plans: bits become items.

use super::super::cursor::{Cursor, sign_extend};
use super::super::plan::{IntNode, Item, Node, Plan, Role, Value};
use super::super::types::ByteOrder;
use super::{Decoder, ITEMS_MAX, Items, PacketError, mask};

/// Pass over a packet's bits.
pub(super) struct PlanRunner<'d, 'p> {
    pub(super) decoder: &'d mut Decoder,
    pub(super) cursor: Cursor<'p>,
    pub(super) steps: usize,
}

impl PlanRunner<'_, '_> {
    fn begin(&mut self, plan: &Plan) -> Result<(), PacketError> {
        if self.decoder.registers.len() < plan.registers {
            self.decoder.registers.resize(plan.registers, 0);
        }
        self.steps = 0;
        Ok(self.cursor.align(plan.align)?)
    }

    #[inline]
    pub(super) fn plan(&mut self, plan: &Plan, items: &mut Items) -> Result<(), PacketError> {
        self.begin(plan)?;
        items.clear();
        for field in &plan.fields {
            items.top.push(items.list.len() as u32);
            self.node::<true>(field, &mut items.list)?;
        }
        Ok(())
    }

    /// Runs a header's plan for the decoder's own use, without items.
    #[inline]
    pub(super) fn plan_without_items(&mut self, plan: &Plan) -> Result<(), PacketError> {
        self.begin(plan)?;
        let mut none = Vec::new();
        plan.fields.iter().try_for_each(|field| self.node::<false>(field, &mut none))
    }

    fn node<const EMIT: bool>(&mut self, node: &Node, out: &mut Vec<Item>) -> Result<(), PacketError> {
        match node {
            Node::Int(int) => {
                let value = self.int(int)?;
                emit::<EMIT>(out, int.info, value);
            }
            Node::Text { info } => {
                self.cursor.align(8)?;
                let (at, length) = self.cursor.text()?;
                emit::<EMIT>(out, *info, Value::Text { at, length });
            }
            Node::TextArray { info, length } => self.text::<EMIT>(*info, *length, out)?,
            Node::TextSequence { info, register } => {
                let length = self.decoder.registers[usize::from(*register)];
                self.text::<EMIT>(*info, length, out)?;
            }
            Node::Float { info, bits, align, order } => {
                self.cursor.align(*align)?;
                let value = self.float(*bits, *order)?;
                emit::<EMIT>(out, *info, Value::Float(value));
            }
            Node::Struct { info, align, fields } => {
                self.cursor.align(*align)?;
                self.step(out.len())?;
                emit::<EMIT>(out, *info, Value::Begin(fields.len() as u32));
                for field in fields {
                    self.node::<EMIT>(field, out)?;
                }
                emit::<EMIT>(out, *info, Value::End);
            }
            Node::Variant { info, register, signed, ranges, options } => {
                let tag = self.decoder.registers[usize::from(*register)];
                let tag = if *signed { i128::from(tag as i64) } else { i128::from(tag) };
                let chosen = ranges.iter().find(|(low, high, _)| (*low..=*high).contains(&tag));
                let (_, _, option) = chosen.ok_or(PacketError::NoOption(tag))?;
                emit::<EMIT>(out, *info, Value::Begin(1));
                self.node::<EMIT>(&options[*option], out)?;
                emit::<EMIT>(out, *info, Value::End);
            }
            Node::Array { info, align, length, element } => {
                self.elements::<EMIT>(*info, *align, *length, element, out)?;
            }
            Node::Sequence { info, align, register, element } => {
                let length = self.decoder.registers[usize::from(*register)];
                self.elements::<EMIT>(*info, *align, length, element, out)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn int(&mut self, int: &IntNode) -> Result<Value, PacketError> {
        self.cursor.align(int.align)?;
        let raw = self.cursor.unsigned(int.bits, int.order)?;
        let value = if int.signed {
            let signed = sign_extend(raw, int.bits);
            self.decoder.registers[usize::from(int.register)] = signed as u64;
            Value::Signed(signed)
        } else {
            self.decoder.registers[usize::from(int.register)] = raw;
            Value::Unsigned(raw)
        };
        match int.role {
            Role::None => {}
            Role::EventId => self.decoder.event_id = raw,
            Role::Clock => self.decoder.clock = extend_clock(self.decoder.clock, raw, int.bits),
        }
        Ok(value)
    }

    fn float(&mut self, bits: u32, order: ByteOrder) -> Result<f64, PacketError> {
        let raw = self.cursor.unsigned(bits, order)?;
        Ok(if bits == 32 { f64::from(f32::from_bits(raw as u32)) } else { f64::from_bits(raw) })
    }

    fn text<const EMIT: bool>(
        &mut self,
        info: u32,
        length: u64,
        out: &mut Vec<Item>,
    ) -> Result<(), PacketError> {
        self.cursor.align(8)?;
        let (at, length) = self.cursor.text_with_length(length)?;
        emit::<EMIT>(out, info, Value::Text { at, length });
        Ok(())
    }

    fn elements<const EMIT: bool>(
        &mut self,
        info: u32,
        align: u32,
        length: u64,
        element: &Node,
        out: &mut Vec<Item>,
    ) -> Result<(), PacketError> {
        self.cursor.align(align)?;
        let short = u32::try_from(length).map_err(|_| PacketError::TooMany)?;
        emit::<EMIT>(out, info, Value::Begin(short));
        for _ in 0..length {
            self.step(out.len())?;
            self.node::<EMIT>(element, out)?;
        }
        emit::<EMIT>(out, info, Value::End);
        Ok(())
    }

    /// Counts an element or structure, and stops impossible lengths.
    #[inline]
    fn step(&mut self, items: usize) -> Result<(), PacketError> {
        self.steps += 1;
        if self.steps > ITEMS_MAX || items > ITEMS_MAX { Err(PacketError::TooMany) } else { Ok(()) }
    }
}

#[inline]
fn emit<const EMIT: bool>(out: &mut Vec<Item>, info: u32, value: Value) {
    if EMIT {
        out.push(Item { info, value });
    }
}

/// Returns the first time from `before` on that has `low` as its lowest `bits`.
#[inline]
fn extend_clock(before: u64, low: u64, bits: u32) -> u64 {
    if bits >= 64 {
        return low;
    }
    let mask = mask(bits);
    let wrapped = if low < before & mask { mask + 1 } else { 0 };
    ((before & !mask) | low).wrapping_add(wrapped)
}
