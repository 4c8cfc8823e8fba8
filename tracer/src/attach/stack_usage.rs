//! Rules of Linux 6.1's verifier that later kernels have dropped, checked on every machine.
//!
//! *In*: the object that is loaded. *Out*: what Linux 6.1 would refuse.
//!
//! *Stack*: a program and the functions that it calls, one in the other, have 512 bytes in total. Each
//! frame counts as the next multiple of 32 bytes (check_max_stack_depth, kernel/bpf/verifier.c).
//! *Loops*: the way back in a loop is a jump. An instruction that falls through to one of an unfinished
//! path is refused (push_insn, ibid.).

use std::collections::HashMap;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};

use crate::attach::OBJECT;

const STACK: usize = 512;
const FRAME: usize = 32;

/// An instruction (include/uapi/linux/bpf.h, `struct bpf_insn`).
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    dst: u8,
    src: u8,
    off: i16,
    imm: i32,
}

/// Place of a function: its section, and its first instruction.
type FunctionAddress = (SectionIndex, usize);

struct Function {
    name: String,
    code: Vec<Instruction>,
    calls: Vec<FunctionAddress>,
}

fn functions() -> HashMap<FunctionAddress, Function> {
    let file = object::File::parse(OBJECT).expect("the object that is loaded");
    let mut functions = HashMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
        let section = symbol.section_index().expect("a function is in a section");
        let (first, count) = (symbol.address() as usize / 8, symbol.size() as usize / 8);
        let data = file.section_by_index(section).expect("the section").data().expect("its bytes");
        let code: Vec<_> = data.chunks_exact(8).skip(first).take(count).map(instruction).collect();
        let name = symbol.name().expect("its name").to_owned();
        functions.insert((section, first), Function { name, code, calls: Vec::new() });
    }
    let callees: Vec<(FunctionAddress, Vec<FunctionAddress>)> =
        functions.iter().map(|(place, function)| (*place, calls(&file, *place, function))).collect();
    for (place, calls) in callees {
        functions.get_mut(&place).expect("it is there").calls = calls;
    }
    functions
}

fn instruction(bytes: &[u8]) -> Instruction {
    let [code, registers, off @ .., _, _, _, _] = bytes else { panic!("8 bytes") };
    Instruction {
        code: *code,
        dst: registers & 15,
        src: registers >> 4,
        off: i16::from_le_bytes(off.try_into().expect("2 bytes")),
        imm: i32::from_le_bytes(bytes[4..].try_into().expect("4 bytes")),
    }
}

/// Returns the functions that a function calls: by a relocation, or relative to the call.
fn calls(
    file: &object::File<'_>,
    (section, first): FunctionAddress,
    function: &Function,
) -> Vec<FunctionAddress> {
    let part = file.section_by_index(section).expect("the section");
    let relocations: HashMap<usize, _> = part.relocations().map(|(at, to)| (at as usize / 8, to)).collect();
    let call = |(at, instruction): (usize, &Instruction)| {
        if (instruction.code, instruction.src) != (0x85, 1) {
            return None;
        }
        let relative = (instruction.imm + 1) as isize;
        let Some(relocation) = relocations.get(&(first + at)) else {
            return Some((section, (first + at).wrapping_add_signed(relative)));
        };
        let RelocationTarget::Symbol(symbol) = relocation.target() else { return None };
        let symbol = file.symbol_by_index(symbol).expect("the symbol");
        let base = symbol.address() as usize / 8;
        let offset = if symbol.kind() == SymbolKind::Text { 0 } else { relative };
        Some((symbol.section_index()?, base.wrapping_add_signed(offset)))
    };
    function.code.iter().enumerate().filter_map(call).collect()
}

/// Returns the bytes of the function's frame: stores to and loads from r10, the frame's end, and
/// addresses in the frame, which are a copy of r10 and an addition.
fn frame(function: &Function) -> usize {
    let accesses = function.code.iter().filter(|one| match one.code & 7 {
        2 | 3 => one.dst == 10,
        1 => one.src == 10,
        _ => false,
    });
    let addresses = function.code.windows(2).filter(|pair| {
        let [copy, add] = pair else { return false };
        copy.code == 0xbf && copy.src == 10 && add.code == 0x07 && add.dst == copy.dst
    });
    let offsets = accesses.map(|one| i32::from(one.off)).chain(addresses.map(|pair| pair[1].imm));
    offsets.min().map_or(0, |lowest| lowest.min(0).unsigned_abs() as usize)
}

/// Returns the most stack that a chain of calls from this function takes, with the chain.
fn deepest(functions: &HashMap<FunctionAddress, Function>, place: FunctionAddress) -> (usize, Vec<&str>) {
    let function = &functions[&place];
    let callees = function.calls.iter().filter(|callee| functions.contains_key(callee));
    let (below, mut chain) =
        callees.map(|callee| deepest(functions, *callee)).max().unwrap_or((0, Vec::new()));
    chain.insert(0, &function.name);
    (below + frame(function).max(1).next_multiple_of(FRAME), chain)
}

/// Returns the instructions that may follow, in the order in which the verifier visits them, and
/// whether each is reached by a jump that may go back.
fn successors(function: &Function, at: usize) -> Vec<(usize, bool)> {
    let one = function.code[at];
    let target = |offset: i16| (at + 1).wrapping_add_signed(offset.into());
    match (one.code & 7, one.code & 0xf0) {
        // BPF_EXIT and BPF_CALL; 32-bit jumps have neither.
        (5, 0x90) => vec![],
        (5, 0x80) => vec![(at + 1, false)],
        (5, 0x00) => vec![(target(one.off), true)],
        (5 | 6, _) => vec![(at + 1, true), (target(one.off), true)],
        // BPF_LD | BPF_DW | BPF_IMM has two slots.
        _ => vec![(at + if one.code == 0x18 { 2 } else { 1 }, false)],
    }
}

/// Returns an instruction that falls through to one of an unfinished path.
fn back_edge(function: &Function) -> Option<(usize, usize)> {
    let mut finished: HashMap<usize, bool> = HashMap::from([(0, false)]);
    let mut path = vec![(0, successors(function, 0).into_iter())];
    while let Some((at, next)) = path.last_mut() {
        let at = *at;
        let Some((to, by_jump)) = next.next() else {
            finished.insert(at, true);
            path.pop();
            continue;
        };
        match finished.get(&to) {
            None => {
                finished.insert(to, false);
                path.push((to, successors(function, to).into_iter()));
            }
            Some(false) if !by_jump => return Some((at, to)),
            Some(_) => {}
        }
    }
    None
}

#[test]
fn no_program_exceeds_the_stack_of_linux_6_1() {
    let functions = functions();
    let mut chains: Vec<_> = functions.keys().map(|place| deepest(&functions, *place)).collect();
    chains.sort();
    let (stack, longest) = chains.last().expect("the object has functions");
    assert!(longest.len() > 1 && *stack > 300, "this no longer finds calls or frames: {chains:?}");
    let too_large: Vec<_> = chains.iter().filter(|(stack, _)| *stack > STACK).collect();
    assert!(too_large.is_empty(), "{too_large:?}");
}

#[test]
fn no_loop_goes_back_without_a_jump() {
    let functions = functions();
    assert!(functions.len() > 50, "{}", functions.len());
    let refused: Vec<_> =
        functions.values().filter_map(|function| Some((&function.name, back_edge(function)?))).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let code = |words: &[(u8, i16)]| {
        let one = |(code, off): &(u8, i16)| Instruction { code: *code, dst: 0, src: 0, off: *off, imm: 0 };
        Function { name: String::new(), code: words.iter().map(one).collect(), calls: Vec::new() }
    };
    // Into the middle of a loop, whose head falls through to it.
    assert_eq!(back_edge(&code(&[(0x05, 1), (0x07, 0), (0x15, 1), (0x05, -3), (0x95, 0)])), Some((1, 2)));
    // The same loop, from its head.
    assert_eq!(back_edge(&code(&[(0x07, 0), (0x15, 1), (0x05, -3), (0x95, 0)])), None);
}
