//! Stack usage of each program. Linux 6.1 rejects what later kernels accept.
//!
//! A program and the functions that it calls have 512 bytes in total; 6.1 rounds each frame up to
//! 32 bytes (check_max_stack_depth, kernel/bpf/verifier.c). The longest call chain of a program is
//! a function without a frame and one with 48 bytes. Both count as 96, which leaves 416.

use std::collections::BTreeMap;

use aya_obj::Object;

use crate::attach::OBJECT;

const PROGRAM_MAX: i16 = 416;

#[test]
fn no_program_exceeds_the_stack_of_linux_6_1() {
    let object = Object::parse(OBJECT).expect("the object that is loaded");
    let mut frames = BTreeMap::new();
    for function in object.functions.values() {
        let mut deepest = 0;
        for (instruction, next) in function.instructions.iter().zip(function.instructions.iter().skip(1)) {
            // Stores to and loads from r10, the frame's end; and addresses in the frame: a copy of
            // r10 and an addition.
            let (class, dst, src) = (instruction.code & 7, instruction.dst_reg(), instruction.src_reg());
            if (matches!(class, 2 | 3) && dst == 10) || (class == 1 && src == 10) {
                deepest = deepest.min(instruction.off);
            }
            if instruction.code == 0xbf && src == 10 && next.code == 0x07 && next.dst_reg() == dst {
                deepest = deepest.min(i16::try_from(next.imm).unwrap_or(i16::MIN));
            }
        }
        frames.insert(function.name.clone(), -deepest);
    }
    assert!(frames["bio_queue_btf"] > 200, "this no longer finds frames: {frames:?}");
    let too_large: Vec<_> = frames.iter().filter(|(_, frame)| **frame > PROGRAM_MAX).collect();
    assert!(too_large.is_empty(), "{too_large:?}");
}
