//! Names of the kernel's functions by address.
//!
//! *In*: /proc/kallsyms, /proc/modules, and return addresses of kernel stacks. *Out*: names; none for an address in no
//! function that the kernel names.
//!
//! *Invariant*: an address in a module is named from a list with just the modules that are loaded when the address is
//! first seen. A module that takes the place of another one later gets that one's names for the addresses that were
//! named before.
//!
//! *Cost*: reading the list of 122,000 functions takes 85 ms, of which the kernel has 50: at the start, and for a new address
//! in a module that was loaded later. Another address in a module costs a read of /proc/modules. The list takes 5 MB.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::ops::Range;
use std::sync::Arc;

use crate::attach::symbols::SYMBOLS;

/// Loaded modules with their addresses (m_show, kernel/module/procfs.c).
const MODULES: &str = "/proc/modules";

/// Bytes behind a function's begin within which an address is taken as the function's: larger ones are rare, and
/// behind the last function of a module there may be none.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of named addresses. Some hundred places of a kernel sleep.
const NAMES_MAX: usize = 16_384;

/// Names of functions.
pub(crate) struct KernelFunctions {
    /// Both files stay open: the process may have no right to the addresses later (kallsyms_open, kernel/kallsyms.c).
    symbols: Option<File>,
    modules_file: Option<File>,
    list: FunctionList,
    /// Modules of the list.
    modules: Vec<Module>,
    /// Names that were asked for.
    names: HashMap<u64, Option<Arc<str>>>,
}

/// A loaded module.
#[derive(Debug, PartialEq, Eq)]
struct Module {
    name: String,
    addresses: Range<u64>,
}

/// Functions by address.
#[derive(Default)]
struct FunctionList {
    /// Begin of each function, and its name's range in `names`; ordered by address.
    functions: Vec<(u64, Range<u32>)>,
    names: String,
    /// Addresses of the kernel itself, without modules.
    kernel: Range<u64>,
}

impl KernelFunctions {
    /// Reads the list. It is empty where the kernel hides addresses.
    pub(crate) fn read() -> KernelFunctions {
        let mut functions = KernelFunctions {
            symbols: File::open(SYMBOLS).ok(),
            modules_file: File::open(MODULES).ok(),
            list: FunctionList::default(),
            modules: Vec::new(),
            names: HashMap::new(),
        };
        functions.modules = functions.loaded_modules();
        functions.read_list();
        functions
    }

    /// Reads the modules; none if the kernel has no modules.
    fn loaded_modules(&mut self) -> Vec<Module> {
        let mut text = String::new();
        if let Some(file) = &mut self.modules_file
            && file.rewind().is_ok()
            && file.read_to_string(&mut text).is_err()
        {
            text.clear();
        }
        text.lines().filter_map(Module::parse).collect()
    }

    fn read_list(&mut self) {
        if let Some(file) = &mut self.symbols
            && file.rewind().is_ok()
        {
            self.list = FunctionList::parse(BufReader::with_capacity(1 << 16, file));
        }
    }

    /// Returns the name of the function that a call returns to at this address.
    pub(crate) fn name(&mut self, address: u64) -> Option<Arc<str>> {
        if let Some(name) = self.names.get(&address) {
            return name.clone();
        }
        if !self.list.kernel.contains(&address) {
            self.update(address);
        }
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        let name: Option<Arc<str>> = self.list.name(address).map(Into::into);
        self.names.insert(address, name.clone());
        name
    }

    /// Reads the list again if other modules are loaded now, or if the address is in none: it may be in an eBPF program.
    fn update(&mut self, address: u64) {
        let modules = self.loaded_modules();
        if modules != self.modules || !modules.iter().any(|module| module.addresses.contains(&address)) {
            self.modules = modules;
            self.read_list();
        }
    }
}

impl Module {
    /// Parses a line as `ext4 1146880 3 - Live 0xffffffffc0000000`.
    fn parse(line: &str) -> Option<Module> {
        let mut words = line.split_ascii_whitespace();
        let (name, bytes) = (words.next()?, words.next()?.parse::<u64>().ok()?);
        let begin = u64::from_str_radix(words.nth(3)?.strip_prefix("0x")?, 16).ok()?;
        Some(Module { name: name.to_owned(), addresses: begin..begin.saturating_add(bytes) })
    }
}

impl FunctionList {
    /// Parses lines as `ffffffff81000000 t name`, then a tab and the module.
    fn parse(mut symbols: impl BufRead) -> FunctionList {
        let (mut list, mut line) = (FunctionList::default(), Vec::new());
        loop {
            line.clear();
            // An error of the kernel ends the list as its end does.
            if !symbols.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                break;
            }
            list.extend(std::str::from_utf8(&line).ok().and_then(parse_function));
        }
        // Of several names of one address the list has the first.
        list.functions.sort_by_key(|(address, _)| *address);
        list.functions.dedup_by_key(|(address, _)| *address);
        list.functions.shrink_to_fit();
        list
    }

    fn extend(&mut self, function: Option<(u64, &str)>) {
        match function {
            None => {}
            Some((address, "_stext")) => self.kernel.start = address,
            Some((address, "_etext")) => self.kernel.end = address,
            Some((address, name)) => {
                let begin = self.names.len() as u32;
                self.names.push_str(own_name(name));
                self.functions.push((address, begin..self.names.len() as u32));
            }
        }
    }

    fn name(&self, address: u64) -> Option<&str> {
        // A call at the very end of a function returns to the begin of the next.
        let address = address.checked_sub(1)?;
        let at = self.functions.partition_point(|(begin, _)| *begin <= address).checked_sub(1)?;
        let (begin, name) = &self.functions[at];
        (address - begin < FUNCTION_BYTES_MAX).then(|| &self.names[name.start as usize..name.end as usize])
    }
}

/// Returns the address and the name of a function; none for other symbols.
fn parse_function(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
    let address = u64::from_str_radix(address, 16).ok().filter(|address| *address != 0)?;
    // Bounds of sections are at the address of a function.
    let is_function = matches!(kind, "t" | "T" | "w" | "W")
        && !name.ends_with("_text_start")
        && !name.ends_with("_text_end");
    is_function.then_some((address, name))
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
    fn a_module_has_its_bytes_behind_its_address() {
        let line = "ext4 1146880 3 - Live 0xffffffffc0000000 (E)";
        let module = Module { name: "ext4".into(), addresses: 0xffff_ffff_c000_0000..0xffff_ffff_c011_8000 };
        assert_eq!(Module::parse(line), Some(module));
        assert_eq!(Module::parse("ext4 1146880 3 -"), None);
    }

    #[test]
    fn the_running_kernel_names_its_own_functions() {
        let mut functions = KernelFunctions::read();
        let Some((begin, _)) = functions.list.functions.first().cloned() else { return };
        let number = functions.list.functions.len();
        assert!(number > 10_000, "{number}");
        assert!(functions.name(begin + 1).is_some());
        // In no function and no module: the list is read again.
        functions.list.functions.clear();
        assert_eq!(functions.name(1), None);
        assert!(functions.list.functions.len().abs_diff(number) < 1_000);
    }

    #[test]
    fn the_list_is_read_again_if_other_modules_are_loaded() {
        let mut functions = KernelFunctions::read();
        if functions.list.functions.is_empty() {
            return;
        }
        let address = 0x1000;
        functions.modules.insert(0, Module { name: "unloaded".into(), addresses: address..address + 1 });
        functions.list.functions.clear();
        assert_eq!(functions.name(address), None);
        assert!(!functions.list.functions.is_empty());
        let loaded = functions.loaded_modules();
        assert_eq!(functions.modules, loaded);
    }
}
