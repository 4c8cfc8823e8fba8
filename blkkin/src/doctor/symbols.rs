//! Checks whether the kernel reveals the address of `bio_chain_endio`. It identifies the front part
//! of a split bio, which passes no hook of its own (docs/limits.md: splits).
//!
//! The check opens the file as the tracer does, since its content depends on the reader
//! (kallsyms_show_value, kernel/ksyms_common.c). With kptr_restrict = 2 it hides addresses from all
//! processes, else it shows them with CAP_SYSLOG. The file is read up to that line: 20 ms with
//! 122,000 symbols.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::check::{Check, CheckStatus};

const NAME: &str = "kernel symbols";
const LOST: &str = "requests for parts of a split bio are not its children, and --sleeps is refused";

/// Checks the symbol.
pub(super) fn check(root: &Path) -> Check {
    let restricted = fs::read_to_string(root.join("proc/sys/kernel/kptr_restrict"));
    let hidden_from_all = restricted.is_ok_and(|text| text.trim() == "2");
    match address(&root.join("proc/kallsyms")) {
        Some(0) if hidden_from_all => {
            let found = format!("kernel.kptr_restrict = 2 hides their addresses: {LOST}");
            Check::new(NAME, CheckStatus::Partial, found).remedy("sysctl kernel.kptr_restrict=1")
        }
        Some(0) => {
            let found =
                format!("their addresses are hidden from this process (CAP_SYSLOG shows them): {LOST}");
            Check::new(NAME, CheckStatus::Unknown, found).remedy("sudo blkkin doctor")
        }
        Some(_) => Check::new(NAME, CheckStatus::Ok, "bio_chain_endio: split bios are traced"),
        None => {
            let found = format!("/proc/kallsyms does not name bio_chain_endio: {LOST}");
            Check::new(NAME, CheckStatus::Partial, found).remedy("a kernel with CONFIG_KALLSYMS=y")
        }
    }
}

/// Returns the symbol's address; 0 if it is hidden.
fn address(symbols: &Path) -> Option<u64> {
    let mut symbols = BufReader::with_capacity(1 << 16, File::open(symbols).ok()?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if symbols.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        if line.trim_ascii_end().ends_with(b" bio_chain_endio") {
            let address = line.split(|byte| *byte == b' ').next()?;
            return u64::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn hidden_address_is_reported_with_its_cause() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("proc/sys/kernel")).unwrap();
        let symbols = |address: &str, restricted: &str| {
            let text = format!(
                "0000000000000000 A fixed_percpu_data\n{address} t __pfx_bio_chain_endio\n{address} t bio_chain_endio\n"
            );
            fs::write(temp.path().join("proc/kallsyms"), text).unwrap();
            fs::write(temp.path().join("proc/sys/kernel/kptr_restrict"), restricted).unwrap();
            check(temp.path())
        };
        let shown = symbols("ffffffff81aec650", "0\n");
        assert_eq!((shown.status, shown.remedy.as_str()), (CheckStatus::Ok, ""));
        let from_us = symbols("0000000000000000", "1\n");
        assert_eq!((from_us.status, from_us.remedy.as_str()), (CheckStatus::Unknown, "sudo blkkin doctor"));
        let from_all = symbols("0000000000000000", "2\n");
        assert_eq!(from_all.status, CheckStatus::Partial);
        assert_eq!(from_all.remedy, "sysctl kernel.kptr_restrict=1");
        assert!(from_all.found.contains("split"), "{}", from_all.found);
    }

    #[test]
    fn kernel_without_symbols_loses_only_splits() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(check(temp.path()).status, CheckStatus::Partial);
        fs::create_dir_all(temp.path().join("proc")).unwrap();
        fs::write(temp.path().join("proc/kallsyms"), "ffffffff81aec640 t __pfx_bio_chain_endio\n").unwrap();
        assert_eq!(check(temp.path()).status, CheckStatus::Partial);
    }
}
