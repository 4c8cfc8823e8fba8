//! Names of the kernel's functions by address.
//!
//! *In*: /proc/kallsyms, and return addresses of kernel stacks. *Out*: names; none for an address in no function that
//! the kernel names.
//!
//! *Invariant*: an address in a module is named from a list that was read after the function was on a stack, so a
//! module that is loaded later does not get the names of its neighbour. A module that takes the place of
//! another one, while blkkin runs, gets that one's names for the addresses that were named before.
//!
//! *Cost*: reading the list takes 40 ms, at the start and once for each new address in a module. The list takes 3 MB.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::sync::Arc;

use blkkin_wire::clock::MonotonicNs;

use crate::attach::symbols::SYMBOLS;
use crate::clock;

/// Bytes behind a function's begin within which an address is taken as the function's: larger ones are rare, and
/// behind the last function of a module there may be none.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of named addresses. Some hundred places of a kernel sleep.
const NAMES_MAX: usize = 16_384;

/// Names of functions.
pub(crate) struct KernelFunctions {
    /// Stays open: the process may have no right to the addresses later (kallsyms_open, kernel/kallsyms.c).
    file: Option<File>,
    list: FunctionList,
    read_at: MonotonicNs,
    /// Names that were asked for.
    names: HashMap<u64, Option<Arc<str>>>,
}

/// Functions by address.
#[derive(Default)]
struct FunctionList {
    /// Begin of each function, and where its name ends in `names`; ordered by address.
    functions: Vec<(u64, u32)>,
    names: String,
    /// Addresses of the kernel itself, without modules.
    kernel: std::ops::Range<u64>,
}

impl KernelFunctions {
    /// Reads the list. It is empty where the kernel hides addresses.
    pub(crate) fn read() -> KernelFunctions {
        let file = File::open(SYMBOLS).ok();
        let (list, names) = (FunctionList::default(), HashMap::new());
        let mut functions = KernelFunctions { file, list, read_at: MonotonicNs(0), names };
        functions.read_list();
        functions
    }

    fn read_list(&mut self) {
        self.read_at = clock::now();
        if let Some(file) = &mut self.file
            && file.rewind().is_ok()
        {
            self.list = FunctionList::parse(BufReader::with_capacity(1 << 16, file));
        }
    }

    /// Returns the name of the function that a call returns to at this address, which was on a stack before `time`.
    pub(crate) fn name(&mut self, address: u64, time: MonotonicNs) -> Option<Arc<str>> {
        if let Some(name) = self.names.get(&address) {
            return name.clone();
        }
        if !self.list.kernel.contains(&address) && self.read_at <= time {
            self.read_list();
        }
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        let name: Option<Arc<str>> = self.list.name(address).map(Into::into);
        self.names.insert(address, name.clone());
        name
    }
}

impl FunctionList {
    /// Parses lines as `ffffffff81000000 t name`, then a tab and the module.
    fn parse(symbols: impl BufRead) -> FunctionList {
        let mut list = FunctionList::default();
        let mut found: Vec<(u64, String)> = Vec::new();
        for line in symbols.lines().map_while(Result::ok) {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            if !matches!(kind, "t" | "T" | "w" | "W") || address == 0 {
                continue;
            }
            match name {
                "_stext" => list.kernel.start = address,
                "_etext" => list.kernel.end = address,
                // Bounds of sections, at the address of a function.
                _ if name.ends_with("_text_start") || name.ends_with("_text_end") => {}
                _ => found.push((address, own_name(name).to_owned())),
            }
        }
        // Of several names of one address the list has the first.
        found.sort_by_key(|(address, _)| *address);
        found.dedup_by_key(|(address, _)| *address);
        for (address, name) in found {
            list.names.push_str(&name);
            list.functions.push((address, list.names.len() as u32));
        }
        list
    }

    fn name(&self, address: u64) -> Option<&str> {
        // A call at the very end of a function returns to the begin of the next.
        let address = address.checked_sub(1)?;
        let at = self.functions.partition_point(|(begin, _)| *begin <= address).checked_sub(1)?;
        let (begin, name_end) = self.functions[at];
        let name_begin = at.checked_sub(1).map_or(0, |before| self.functions[before].1);
        (address - begin < FUNCTION_BYTES_MAX).then(|| &self.names[name_begin as usize..name_end as usize])
    }
}

/// Returns the name as in the source: compilers add `.isra.0`, `.constprop.0` and others to parts and copies.
fn own_name(name: &str) -> &str {
    name.split('.').next().filter(|name| !name.is_empty()).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &str = "ffffffff81000000 T _stext\n\
                           ffffffff81000000 T first\n\
                           ffffffff81000040 t second.isra.0\n\
                           ffffffff81000040 t alias\n\
                           ffffffff81000080 d data\n\
                           ffffffff81000100 T __sched_text_start\n\
                           ffffffff81000100 T schedule\n\
                           ffffffff81000200 T _etext\n\
                           ffffffffc0000000 t ext4_sync_file\t[ext4]\n\
                           broken\n";

    fn name(address: u64) -> Option<String> {
        FunctionList::parse(SYMBOLS.as_bytes()).name(address).map(str::to_owned)
    }

    #[test]
    fn a_return_address_belongs_to_the_function_of_the_call() {
        let names = [
            (0xffff_ffff_8100_0000, None),
            (0xffff_ffff_8100_0001, Some("first")),
            (0xffff_ffff_8100_0040, Some("first")),
            (0xffff_ffff_8100_0041, Some("second")),
            (0xffff_ffff_8100_0090, Some("second")),
            (0xffff_ffff_8100_0101, Some("schedule")),
            (0xffff_ffff_c000_0010, Some("ext4_sync_file")),
            (0xffff_ffff_c001_0000, Some("ext4_sync_file")),
            (0xffff_ffff_c001_0001, None),
            (0, None),
        ];
        for (address, expected) in names {
            assert_eq!(name(address).as_deref(), expected, "{address:x}");
        }
        assert_eq!(FunctionList::parse(&b""[..]).name(7), None);
    }

    #[test]
    fn the_running_kernel_names_its_own_functions() {
        let mut functions = KernelFunctions::read();
        let Some((begin, _)) = functions.list.functions.first().copied() else { return };
        let number = functions.list.functions.len();
        assert!(number > 10_000, "{number}");
        assert!(functions.name(begin + 1, MonotonicNs(0)).is_some());
        // In no function: the list is read again.
        let now = MonotonicNs(functions.read_at.0 + 1);
        assert_eq!(functions.name(1, now), None);
        assert!(functions.read_at > now && functions.list.functions.len().abs_diff(number) < 1_000);
    }
}
