//! Block devices with a request queue, and those without statistics.
//!
//! blkkin traces the latter too: the kernel passes block_io_start before it checks whether to
//! count, in every release with this tracepoint (blk_account_io_start, block/blk-mq.c, since
//! 5a80bd075f3b in 6.5). But /proc/diskstats shows nothing for them, which explains differences to
//! the report. Devices without requests (zram, device-mapper) have no folder `mq`.

use std::fs;
use std::path::Path;

use super::check::{Check, CheckStatus};

/// Maximum number of devices to name: a machine may have thousands.
const NAMED_MAX: usize = 6;

/// Checks all devices in one line, since most machines have no exception.
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
    let uncounted = if names.is_empty() {
        String::new()
    } else {
        let more = if names.len() > NAMED_MAX { " …" } else { "" };
        let named = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(" ");
        format!(
            "; traced, although iostat and /proc/diskstats count nothing there (queue/iostats = 0): {named}{more}"
        )
    };
    let found = format!("{total} with a request queue{uncounted}");
    (total > 0).then(|| Check::new("devices", CheckStatus::Ok, found))
}

fn is_off(iostats: &Path) -> bool {
    fs::read_to_string(iostats).is_ok_and(|text| text.trim() == "0")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn devices_without_statistics_are_named() {
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
        assert_eq!((found.status, found.remedy.as_str()), (CheckStatus::Ok, ""));
        assert!(found.found.ends_with("(queue/iostats = 0): vdb"), "{}", found.found);
        fs::write(temp.path().join("sys/block/vdb/queue/iostats"), "1").unwrap();
        assert_eq!(check(temp.path()).unwrap().found, "2 with a request queue");
    }
}
