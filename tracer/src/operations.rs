//! The numbers that this kernel gives to operations on block devices: those of zones have changed.
//!
//! *In*: the kernel's `enum req_op`. *Out*: [`BlockOp`]s with `wire`'s numbers.

use blkkin_wire::op::{BlockOp, OPERATIONS, UNKNOWN};

use crate::btf::Btf;

/// The enum; it has a name since 6.0 (ff07a02e9e8e, "treewide: Rename enum req_opf into enum req_op").
pub(crate) const ENUM: &str = "req_op";

/// A driver's command that brings data; one that takes data has the number behind it.
pub(crate) const DRIVER_IN: &str = "REQ_OP_DRV_IN";

/// Numbers up to this one have not changed: reads, writes, flushes, discards.
const FIXED_MAX: u8 = 3;

/// By the kernel's number, the number in `wire`.
#[derive(Clone, Debug)]
pub struct Operations([u8; 256]);

impl Default for Operations {
    /// As if the kernel's were `wire`'s.
    fn default() -> Self {
        Operations::by(|name| {
            OPERATIONS.iter().find(|(_, known, _)| *known == name).map(|(number, ..)| *number)
        })
    }
}

impl Operations {
    /// As this kernel says.
    pub(crate) fn of(btf: &Btf<'_>) -> Self {
        Operations::by(|name| btf.value(ENUM, name).and_then(|number| u8::try_from(number).ok()))
    }

    fn by(number_of: impl Fn(&str) -> Option<u8>) -> Self {
        let mut numbers = [UNKNOWN; 256];
        for (number, name, _) in OPERATIONS {
            let theirs = if *number <= FIXED_MAX { Some(*number) } else { number_of(name) };
            if let Some(theirs) = theirs {
                numbers[usize::from(theirs)] = *number;
            }
        }
        Operations(numbers)
    }

    /// What `bi_opf` or `cmd_flags` says.
    #[inline]
    pub(crate) fn translate(&self, opf: u32) -> BlockOp {
        let number = opf as u8;
        if number <= FIXED_MAX {
            BlockOp(opf)
        } else {
            BlockOp(opf & !0xff | u32::from(self.0[usize::from(number)]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_keeps_its_name_where_its_number_is_another() {
        let older = Operations::by(|name| match name {
            "REQ_OP_ZONE_APPEND" => Some(13),
            "REQ_OP_ZONE_RESET" => Some(15),
            _ => None,
        });
        let name = |number: u32| older.translate(number | 1 << 11).name();
        assert_eq!(
            [name(13), name(15), name(17), name(1)],
            ["zone-append", "zone-reset", "unknown", "write"]
        );
        assert!(older.translate(13 | 1 << 11).is_sync());
        assert_eq!(Operations::default().translate(17).name(), "zone-reset");
    }

    #[test]
    fn this_kernel_numbers_all_that_every_kernel_has() {
        let Ok(types) = crate::layout::resolve() else { return };
        let known: Vec<u8> = types.operations.0.iter().copied().filter(|number| *number != UNKNOWN).collect();
        assert_eq!(known.len(), OPERATIONS.len(), "{known:?}");
    }
}
