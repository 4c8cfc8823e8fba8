//! Block devices whose requests cannot be followed: with `queue/iostats` off the kernel does not pass
//! block_io_start (blk_account_io_start, block/blk-mq.c), which says whose a request is. Devices that make no
//! requests (zram, device-mapper) have no folder `mq` and nothing to lose.

use std::fs;
use std::path::Path;

use super::check::{Check, Standing};

/// Devices named in one line: a machine may have thousands.
const NAMED_MAX: usize = 6;

/// One line for all devices, as most machines have nothing to say here.
pub(super) fn check(root: &Path) -> Option<Check> {
    let mut names: Vec<String> = fs::read_dir(root.join("sys/block"))
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    names.retain(|name| root.join("sys/block").join(name).join("mq").exists());
    names.sort();
    let total = names.len();
    names.retain(|name| is_off(&root.join("sys/block").join(name).join("queue/iostats")));
    match (total, names.first()) {
        (0, _) => None,
        (_, None) => Some(Check::new(
            "devices",
            Standing::Fine,
            format!("{total} that make requests, each with queue/iostats = 1"),
        )),
        (_, Some(first)) => {
            let more = if names.len() > NAMED_MAX { " …" } else { "" };
            let named = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(" ");
            let found = format!("queue/iostats = 0 on {named}{more}: their requests cannot be followed");
            let remedy = format!("echo 1 > /sys/block/{first}/queue/iostats");
            Some(Check::new("devices", Standing::Partly, found).remedy(remedy))
        }
    }
}

fn is_off(iostats: &Path) -> bool {
    fs::read_to_string(iostats).is_ok_and(|text| text.trim() == "0")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn names_the_devices_that_keep_no_statistics() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(check(temp.path()), None);
        for (name, iostats, mq) in [("vda", "1\n", true), ("vdb", "0\n", true), ("zram0", "0\n", false)] {
            let device = temp.path().join("sys/block").join(name);
            fs::create_dir_all(device.join("queue")).unwrap();
            fs::write(device.join("queue/iostats"), iostats).unwrap();
            if mq {
                fs::create_dir(device.join("mq")).unwrap();
            }
        }
        let found = check(temp.path()).unwrap();
        assert_eq!(found.standing, Standing::Partly);
        assert_eq!(found.remedy, "echo 1 > /sys/block/vdb/queue/iostats");
        assert!(found.found.contains("on vdb:"), "{}", found.found);
        fs::write(temp.path().join("sys/block/vdb/queue/iostats"), "1").unwrap();
        assert_eq!(check(temp.path()).unwrap().standing, Standing::Fine);
    }
}
