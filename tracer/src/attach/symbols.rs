//! Addresses of kernel functions. A bio's `bi_end_io` identifies the driver that created it.
//!
//! *In*: /proc/kallsyms. *Out*: addresses by name. None for a symbol that this kernel lacks or
//! hides (kernel.kptr_restrict = 2); the driver is then unknown, and nothing is guessed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

pub(crate) const SYMBOLS: &str = "/proc/kallsyms";

/// A kernel function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelSymbol {
    pub(crate) name: &'static str,
    /// Module that defines it, also if the module is built in. Another module may define the same
    /// name: dm_mod and, since Linux 6.5, dm_flakey each have a `clone_endio`, which end different
    /// bios.
    pub(crate) module: Option<&'static str>,
}

/// Addresses of the wanted functions.
#[derive(Debug, Default)]
pub(crate) struct Symbols(HashMap<&'static str, Vec<u64>>);

impl Symbols {
    /// Looks up the addresses that the running kernel exposes. Reading all 200,000 symbols takes
    /// 40 ms.
    pub(crate) fn read(wanted: &[KernelSymbol]) -> Symbols {
        let file = File::open(SYMBOLS);
        file.map(|file| Symbols::find_in(BufReader::with_capacity(1 << 16, file), wanted)).unwrap_or_default()
    }

    /// Returns the address of a function; none if the kernel lacks it, or has several of this name:
    /// where a driver is built in, the file does not name its module.
    pub(crate) fn only(&self, function: KernelSymbol) -> Option<u64> {
        match self.all(function) {
            [address] => Some(*address),
            _ => None,
        }
    }

    /// Returns the addresses of all functions of this name.
    pub(crate) fn all(&self, function: KernelSymbol) -> &[u64] {
        self.0.get(function.name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn find_in(symbols: impl BufRead, wanted: &[KernelSymbol]) -> Symbols {
        let wanted: HashMap<&[u8], &KernelSymbol> =
            wanted.iter().map(|symbol| (symbol.name.as_bytes(), symbol)).collect();
        let mut found: HashMap<&'static str, Vec<u64>> = HashMap::new();
        for line in symbols.split(b'\n').map_while(Result::ok) {
            // `ffffffff81000000 t name`, then a tab and the module.
            let Some(rest) = line.get(19..) else { continue };
            let end = rest.iter().position(|byte| *byte == b'\t').unwrap_or(rest.len());
            let (name, within) = rest.split_at(end);
            let Some(symbol) = wanted.get(name) else { continue };
            let within = within.strip_prefix(b"\t[").and_then(|within| within.strip_suffix(b"]"));
            if within.is_some() && within != symbol.module.map(str::as_bytes) {
                continue;
            }
            let digits = std::str::from_utf8(&line[..16]).ok();
            let address = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            if let Some(address) = address.filter(|address| *address != 0) {
                found.entry(symbol.name).or_default().push(address);
            }
        }
        Symbols(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn symbol(name: &'static str) -> KernelSymbol {
        KernelSymbol { name, module: None }
    }

    const CLONE: KernelSymbol = KernelSymbol { name: "clone_endio", module: Some("dm_mod") };

    fn only(symbols: &[u8], wanted: &[KernelSymbol]) -> Vec<Option<u64>> {
        let found = Symbols::find_in(symbols, wanted);
        wanted.iter().map(|symbol| found.only(*symbol)).collect()
    }

    #[test]
    fn symbols_match_by_full_name() {
        let symbols = "ffffffff81000000 T xbio_endio\n\
                       ffffffff81000010 T bio_endio\n\
                       ffffffff81000020 t bio_endio_async\n\
                       0000000000000000 t hidden\n\
                       ffffffffc0000030 t clone_endio\t[dm_mod]\n";
        let wanted = [symbol("bio_endio"), CLONE, symbol("hidden"), symbol("absent")];
        let expected = [Some(0xffff_ffff_8100_0010), Some(0xffff_ffff_c000_0030), None, None];
        assert_eq!(only(symbols.as_bytes(), &wanted), expected);
        assert_eq!(only(b"\xff\xff\nshort\n", &[symbol("a")]), [None]);
    }

    #[test]
    fn symbol_of_another_module_is_ignored() {
        let symbols = "ffffffffc0000010 t clone_endio\t[dm_flakey]\n\
                       ffffffffc0000030 t clone_endio\t[dm_mod]\n\
                       ffffffffc0000050 t clone_endio\t[dm_flakey]\n";
        assert_eq!(only(symbols.as_bytes(), &[CLONE]), [Some(0xffff_ffff_c000_0030)]);
    }

    #[test]
    fn ambiguous_built_in_symbol_is_ignored() {
        let one = "ffffffff81000030 t clone_endio\n";
        assert_eq!(only(one.as_bytes(), &[CLONE]), [Some(0xffff_ffff_8100_0030)]);
        let two = format!("{one}ffffffff81000090 t clone_endio\n");
        assert_eq!(only(two.as_bytes(), &[CLONE]), [None]);
    }
}
