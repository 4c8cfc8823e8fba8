//! Where the kernel's own functions are: a bio says in which it will end, and by that who made it.
//!
//! *In*: /proc/kallsyms. *Out*: addresses by name; none for a name that this kernel has not, or hides
//! (kernel.kptr_restrict = 2): then what it would have told is not known, and nothing is guessed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

const SYMBOLS: &str = "/proc/kallsyms";

/// The addresses of those of `names` that the running kernel tells. Reading all of 200,000 takes 40 ms, so it ends with the last
/// that is asked for.
pub(crate) fn addresses(names: &[&'static str]) -> HashMap<&'static str, u64> {
    let file = File::open(SYMBOLS);
    file.map(|file| among(BufReader::with_capacity(1 << 16, file), names)).unwrap_or_default()
}

fn among(symbols: impl BufRead, names: &[&'static str]) -> HashMap<&'static str, u64> {
    let mut found = HashMap::new();
    for line in symbols.split(b'\n').map_while(Result::ok) {
        // `ffffffff81000000 t name`, and behind a tab the module.
        let Some(rest) = line.get(19..) else { continue };
        let end = rest.iter().position(|byte| *byte == b'\t').unwrap_or(rest.len());
        let Some(name) = names.iter().find(|name| name.as_bytes() == &rest[..end]) else { continue };
        let digits = std::str::from_utf8(&line[..16]).ok();
        let address = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if let Some(address) = address.filter(|address| *address != 0) {
            found.insert(*name, address);
            if found.len() == names.len() {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_whole_name() {
        let symbols = "ffffffff81000000 T xbio_endio\n\
                       ffffffff81000010 T bio_endio\n\
                       ffffffff81000020 t bio_endio_async\n\
                       0000000000000000 t hidden\n\
                       ffffffffc0000030 t clone_endio\t[dm_mod]\n";
        let found = among(symbols.as_bytes(), &["bio_endio", "clone_endio", "hidden", "absent"]);
        let expected = [("bio_endio", 0xffff_ffff_8100_0010), ("clone_endio", 0xffff_ffff_c000_0030)];
        assert_eq!(found, expected.into_iter().collect());
        assert_eq!(among(&b"\xff\xff\nshort\n"[..], &["a"]), HashMap::new());
    }
}
