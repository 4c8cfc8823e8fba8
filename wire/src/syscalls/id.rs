//! Compact id of a system call: its index in the table.
//!
//! One byte identifies the call, whatever the architecture. A [`SyscallId`] exists only for a line
//! of the table, so [`SyscallId::spec`] cannot fail; bytes from outside pass through
//! [`SyscallId::from_index`].

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::table::SYSCALLS;
use super::{Arch, SyscallSpec};

/// Index into the system call table, as events carry it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SyscallId(u8);

impl SyscallId {
    /// Number of system calls in the table.
    pub const COUNT: usize = SYSCALLS.len();

    /// Returns the table entry.
    pub fn spec(self) -> &'static SyscallSpec {
        &SYSCALLS[usize::from(self.0)]
    }

    /// Returns the kernel's name of the call.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the call with that name. It is `const`, so code can name a call at compile time.
    pub const fn by_name(name: &str) -> Option<SyscallId> {
        let mut index = 0;
        while index < SYSCALLS.len() {
            if same_bytes(SYSCALLS[index].name.as_bytes(), name.as_bytes()) {
                return Some(SyscallId(index as u8));
            }
            index += 1;
        }
        None
    }

    /// Returns the call with that number on `arch`, with one array access. `None` for a call that
    /// blkkin does not trace.
    pub fn by_number(arch: Arch, number: u32) -> Option<SyscallId> {
        let numbers = match arch {
            Arch::X86_64 => &X86_64_NUMBERS,
            Arch::Aarch64 => &AARCH64_NUMBERS,
        };
        let index = *numbers.get(usize::try_from(number).ok()?)?;
        (index != NO_SYSCALL).then_some(SyscallId(index))
    }

    /// Returns the index in the table, as stored in events.
    pub const fn index(self) -> u8 {
        self.0
    }

    /// Returns the call at that index; `None` if this version does not know it.
    pub const fn from_index(index: u8) -> Option<SyscallId> {
        if (index as usize) < SYSCALLS.len() { Some(SyscallId(index)) } else { None }
    }

    /// Iterates over all calls in table order.
    pub fn all() -> impl ExactSizeIterator<Item = SyscallId> {
        // Lossless: NO_SYSCALL exceeds every index, see below.
        (0..SYSCALLS.len() as u8).map(SyscallId)
    }
}

/// Serialises the name: the index can mean another call in another version.
impl Serialize for SyscallId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for SyscallId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SyscallId, D::Error> {
        let name = <&str>::deserialize(from)?;
        let unknown = || D::Error::custom(format!("no call {name} is known"));
        SyscallId::by_name(name).ok_or_else(unknown)
    }
}

impl fmt::Display for SyscallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Greater than every number in use: the newest traced call is openat2, 437 on both architectures.
/// A greater number in the table fails the build, because the array index would be out of bounds.
const NUMBERS_MAX: usize = 512;
const NO_SYSCALL: u8 = u8::MAX;
const _: () = assert!(SYSCALLS.len() <= NO_SYSCALL as usize);

static X86_64_NUMBERS: [u8; NUMBERS_MAX] = numbers(Arch::X86_64);
static AARCH64_NUMBERS: [u8; NUMBERS_MAX] = numbers(Arch::Aarch64);

const fn numbers(arch: Arch) -> [u8; NUMBERS_MAX] {
    let mut numbers = [NO_SYSCALL; NUMBERS_MAX];
    let mut index = 0;
    while index < SYSCALLS.len() {
        if let Some(number) = SYSCALLS[index].number(arch) {
            assert!(numbers[number as usize] == NO_SYSCALL, "two calls with one number");
            numbers[number as usize] = index as u8;
        }
        index += 1;
    }
    numbers
}

const fn same_bytes(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut at = 0;
    while at < left.len() {
        if left[at] != right[at] {
            return false;
        }
        at += 1;
    }
    true
}
