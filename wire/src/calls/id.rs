//! The short name of a call: its place in the table.
//!
//! One byte says which call it was, whatever the architecture. A [`CallId`] exists only for a line that the
//! table has, so [`CallId::spec`] cannot fail; bytes from outside pass through [`CallId::from_index`].

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::table::CALLS;
use super::{Arch, CallSpec};

/// Index into the table of calls: what an event carries.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CallId(u8);

impl CallId {
    /// How many calls the table has.
    pub const COUNT: usize = CALLS.len();

    /// The table's line.
    pub fn spec(self) -> &'static CallSpec {
        &CALLS[usize::from(self.0)]
    }

    /// The kernel's name of the call.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The call of that name. It is `const`, so code that means one call can name it at compile time.
    pub const fn by_name(name: &str) -> Option<CallId> {
        let mut index = 0;
        while index < CALLS.len() {
            if same_bytes(CALLS[index].name.as_bytes(), name.as_bytes()) {
                return Some(CallId(index as u8));
            }
            index += 1;
        }
        None
    }

    /// The call with that number on `arch`: one array access. `None` for a call that blkkin does not follow.
    pub fn by_number(arch: Arch, number: u32) -> Option<CallId> {
        let numbers = match arch {
            Arch::X86_64 => &X86_64_NUMBERS,
            Arch::Aarch64 => &AARCH64_NUMBERS,
        };
        let index = *numbers.get(usize::try_from(number).ok()?)?;
        (index != NO_CALL).then_some(CallId(index))
    }

    /// Its place in the table, as stored in events.
    pub const fn index(self) -> u8 {
        self.0
    }

    /// The call at that place of the table; `None` for a byte that this version does not know.
    pub const fn from_index(index: u8) -> Option<CallId> {
        if (index as usize) < CALLS.len() { Some(CallId(index)) } else { None }
    }

    /// All calls in the order of the table.
    pub fn all() -> impl ExactSizeIterator<Item = CallId> {
        // Lossless: NO_CALL is above every index, see below.
        (0..CALLS.len() as u8).map(CallId)
    }
}

/// By name: a place in the table is another call's in another version.
impl Serialize for CallId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for CallId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<CallId, D::Error> {
        let name = <&str>::deserialize(from)?;
        let unknown = || D::Error::custom(format!("no call {name} is known"));
        CallId::by_name(name).ok_or_else(unknown)
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Above every number in use: the newest call followed is openat2, 437 on both architectures. A greater number
/// in the table fails the build, as the array would be indexed out of bounds.
const NUMBERS_MAX: usize = 512;
const NO_CALL: u8 = u8::MAX;
const _: () = assert!(CALLS.len() <= NO_CALL as usize);

static X86_64_NUMBERS: [u8; NUMBERS_MAX] = numbers(Arch::X86_64);
static AARCH64_NUMBERS: [u8; NUMBERS_MAX] = numbers(Arch::Aarch64);

const fn numbers(arch: Arch) -> [u8; NUMBERS_MAX] {
    let mut numbers = [NO_CALL; NUMBERS_MAX];
    let mut index = 0;
    while index < CALLS.len() {
        if let Some(number) = CALLS[index].number(arch) {
            assert!(numbers[number as usize] == NO_CALL, "two calls with one number");
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
