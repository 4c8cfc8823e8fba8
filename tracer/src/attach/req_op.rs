//! Mapping of this kernel's `enum req_op` to the numbers in `wire`. Kernels differ in the numbers
//! of zone operations.
//!
//! *In*: the enum, from BTF. *Out*: [`BlockOp`]s with `wire`'s numbers.

use blkkin_wire::op::{BLOCK_OPS, BlockOp, UNKNOWN_OP};

use crate::attach::btf::Btf;

/// Name of the enum since 6.0 (ff07a02e9e8e, "treewide: Rename enum req_opf into enum req_op").
pub(crate) const REQ_OP_ENUM: &str = "req_op";

/// Enumerator of a driver command that reads data; the next number is the one that writes data.
pub(crate) const DRIVER_IN: &str = "REQ_OP_DRV_IN";

/// Highest number that is the same on all kernels: reads, writes, flushes, discards.
const FIXED_MAX: u8 = 3;

/// Numbers in `wire`, indexed by the kernel's number.
#[derive(Clone, Debug)]
pub struct ReqOpTable([u8; 256]);

impl Default for ReqOpTable {
    /// Returns the identity mapping, which assumes `wire`'s numbers.
    fn default() -> Self {
        ReqOpTable::from_numbers(|name| {
            BLOCK_OPS.iter().find(|(_, known, _)| *known == name).map(|(number, ..)| *number)
        })
    }
}

impl ReqOpTable {
    /// Builds the table from the kernel's BTF.
    pub(crate) fn from_btf(btf: &Btf<'_>) -> Self {
        ReqOpTable::from_numbers(|name| {
            btf.value(REQ_OP_ENUM, name).and_then(|number| u8::try_from(number).ok())
        })
    }

    fn from_numbers(number_of: impl Fn(&str) -> Option<u8>) -> Self {
        let mut numbers = [UNKNOWN_OP; 256];
        for (number, name, _) in BLOCK_OPS {
            let kernel_number = if *number <= FIXED_MAX { Some(*number) } else { number_of(name) };
            if let Some(kernel_number) = kernel_number {
                numbers[usize::from(kernel_number)] = *number;
            }
        }
        ReqOpTable(numbers)
    }

    /// Translates `bi_opf` or `cmd_flags`.
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
    fn op_keeps_its_name_when_numbers_differ() {
        let old_kernel = ReqOpTable::from_numbers(|name| match name {
            "REQ_OP_ZONE_APPEND" => Some(13),
            "REQ_OP_ZONE_RESET" => Some(15),
            _ => None,
        });
        let name = |number: u32| old_kernel.translate(number | 1 << 11).name();
        assert_eq!(
            [name(13), name(15), name(17), name(1)],
            ["zone-append", "zone-reset", "unknown", "write"]
        );
        assert!(old_kernel.translate(13 | 1 << 11).is_sync());
        assert_eq!(ReqOpTable::default().translate(17).name(), "zone-reset");
    }

    #[test]
    fn running_kernel_numbers_all_common_ops() {
        let Ok(types) = crate::attach::layout::resolve() else { return };
        let known: Vec<u8> =
            types.operations.0.iter().copied().filter(|number| *number != UNKNOWN_OP).collect();
        assert_eq!(known.len(), BLOCK_OPS.len(), "{known:?}");
    }
}
