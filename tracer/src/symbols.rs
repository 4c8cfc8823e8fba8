//! Where the kernel's own functions are: a bio says in which it will end, and by that who made it.
//!
//! *In*: /proc/kallsyms. *Out*: addresses by name; none for a name that this kernel has not, or hides
//! (kernel.kptr_restrict = 2): then what it would have told is not known, and nothing is guessed.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};

const SYMBOLS: &str = "/proc/kallsyms";

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// The module that it is in, or was before it was built into the kernel. Another module may have one of the same name:
    /// `clone_endio` is one of dm_mod and, since Linux 6.5, one of dm_flakey, and they end other bios.
    pub(crate) module: Option<&'static str>,
}

/// The addresses of those functions that the running kernel tells. Reading all of 200,000 takes 40 ms, so it ends with the last
/// that is asked for; not where one of a driver is built in, which does not say of which: one that is there twice is none.
pub(crate) fn addresses(wanted: &[Function]) -> HashMap<&'static str, u64> {
    let file = File::open(SYMBOLS);
    file.map(|file| among(BufReader::with_capacity(1 << 16, file), wanted)).unwrap_or_default()
}

fn among(symbols: impl BufRead, wanted: &[Function]) -> HashMap<&'static str, u64> {
    let (mut found, mut ambiguous, mut built_in) = (HashMap::new(), HashSet::new(), false);
    for line in symbols.split(b'\n').map_while(Result::ok) {
        // `ffffffff81000000 t name`, and behind a tab the module.
        let Some(rest) = line.get(19..) else { continue };
        let end = rest.iter().position(|byte| *byte == b'\t').unwrap_or(rest.len());
        let (name, within) = rest.split_at(end);
        let Some(one) = wanted.iter().find(|one| one.name.as_bytes() == name) else { continue };
        let within = within.strip_prefix(b"\t[").and_then(|within| within.strip_suffix(b"]"));
        if within.is_some() && within != one.module.map(str::as_bytes) {
            continue;
        }
        let digits = std::str::from_utf8(&line[..16]).ok();
        let address = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if let Some(address) = address.filter(|address| *address != 0) {
            built_in |= within.is_none() && one.module.is_some();
            if found.insert(one.name, address).is_some() {
                ambiguous.insert(one.name);
            }
            if found.len() == wanted.len() && !built_in {
                break;
            }
        }
    }
    found.retain(|name, _| !ambiguous.contains(name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn function(name: &'static str) -> Function {
        Function { name, module: None }
    }

    const CLONE: Function = Function { name: "clone_endio", module: Some("dm_mod") };

    #[test]
    fn each_is_found_by_its_whole_name() {
        let symbols = "ffffffff81000000 T xbio_endio\n\
                       ffffffff81000010 T bio_endio\n\
                       ffffffff81000020 t bio_endio_async\n\
                       0000000000000000 t hidden\n\
                       ffffffffc0000030 t clone_endio\t[dm_mod]\n";
        let wanted = [function("bio_endio"), CLONE, function("hidden"), function("absent")];
        let expected = [("bio_endio", 0xffff_ffff_8100_0010), ("clone_endio", 0xffff_ffff_c000_0030)];
        assert_eq!(among(symbols.as_bytes(), &wanted), expected.into_iter().collect());
        assert_eq!(among(&b"\xff\xff\nshort\n"[..], &[function("a")]), HashMap::new());
    }

    #[test]
    fn one_of_another_module_is_another() {
        let symbols = "ffffffffc0000010 t clone_endio\t[dm_flakey]\n\
                       ffffffffc0000030 t clone_endio\t[dm_mod]\n\
                       ffffffffc0000050 t clone_endio\t[dm_flakey]\n";
        assert_eq!(among(symbols.as_bytes(), &[CLONE]), [("clone_endio", 0xffff_ffff_c000_0030)].into());
    }

    #[test]
    fn of_two_that_are_built_in_it_is_neither() {
        let one = "ffffffff81000030 t clone_endio\n";
        assert_eq!(among(one.as_bytes(), &[CLONE]), [("clone_endio", 0xffff_ffff_8100_0030)].into());
        let two = format!("{one}ffffffff81000090 t clone_endio\n");
        assert_eq!(among(two.as_bytes(), &[CLONE]), HashMap::new());
    }
}
