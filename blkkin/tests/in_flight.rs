//! Operations in flight when tracing ends: a device that was removed, and a request that does not
//! complete. They are reported as such, without invented data, and the counters balance.
//!
//! *Input*: a loop device that is detached, and one whose backing file system is frozen. The
//! kernel's `inflight` file and the test's own wait give the expected state and age.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use serde_json::Value;

use crate::support::direct;
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::live::{LiveTrace, eventually};
use crate::support::missed_ends::{Missed, until_all_ends_seen};
use crate::support::tools::{capture, tool};
use crate::support::{needs, or_skip};

const BLOCK: u64 = 4096;
const WRITES: u64 = 32;
/// `_IOWR('X', 119, int)` and 120 (include/uapi/linux/fs.h).
const FIFREEZE: libc::Ioctl = 0xc004_5877_u32 as libc::Ioctl;
const FITHAW: libc::Ioctl = 0xc004_5878_u32 as libc::Ioctl;

/// The device is detached while it is traced.
#[test]
fn a_device_that_is_detached() {
    needs!("losetup");
    let trace_and_detach = || {
        let disk = Disk::raw(1 << 20)?;
        let folder = tempfile::tempdir().unwrap();
        let node = disk.node().to_str().unwrap();
        let live = LiveTrace::trace(&["--device", node], folder.path().join("report.json"));
        direct::write(disk.node(), 0..WRITES);
        capture(tool("losetup").args(["--detach", node])).unwrap();
        let size = format!("/sys/block/{}/size", disk.name());
        assert!(
            eventually(|| std::fs::read_to_string(&size).unwrap().trim() == "0"),
            "{node} is still there"
        );
        Ok::<_, String>((live.finish(), disk.name().to_owned()))
    };
    let missed = |run: &Result<(Value, String), _>| match run {
        Ok((report, _)) => vec![Missed::in_report(report)],
        Err(_) => Vec::new(),
    };
    let (report, name) = or_skip!(until_all_ends_seen(trace_and_detach, missed));
    let row = device(&report, &name);
    let requests = row["operations"].as_array().unwrap().iter().find(|row| row["operation"] == "write");
    assert_eq!(requests.unwrap()["requests"], WRITES, "{row:#}");
    assert_eq!(report["devices_lost"], serde_json::json!([{ "device": name, "fate": "gone" }]));
    assert_balanced(&report);
}

/// A loop device whose backing file system is frozen: a write is issued and does not complete.
#[test]
fn a_request_that_does_not_complete() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(32 << 20));
    let upper = or_skip!(disk.upper(1 << 20));
    let folder = tempfile::tempdir().unwrap();
    let node = upper.node.to_str().unwrap().to_owned();
    let frozen = Frozen::freeze(&disk.mount_point());
    let live = LiveTrace::trace(&["--device", &node], folder.path().join("report.json"));
    let target = upper.node.clone();
    let mut writer = GatedProcess::new(move || {
        direct::write(&target, 2..3);
        0
    });
    writer.release();
    let in_flight = format!("/sys/block/{}/inflight", upper.name());
    // Reads and writes that the driver has (Documentation/ABI/stable/sysfs-block).
    let is_issued = || std::fs::read_to_string(&in_flight).unwrap().split_whitespace().nth(1) == Some("1");
    assert!(eventually(is_issued), "nothing is in flight");
    std::thread::sleep(std::time::Duration::from_millis(AGE_MS));
    let report = live.finish();
    drop(frozen);
    assert_eq!(writer.run_to_exit(), 0);
    let stuck: Vec<&Value> = report["in_flight"].as_array().unwrap().iter().collect();
    println!("{stuck:#?}");
    let request = stuck.iter().find(|one| one["layer"] == "request").unwrap();
    assert_eq!((&request["device"], &request["operation"]), (&upper.name().into(), &"write".into()));
    assert_eq!((&request["sector"], &request["bytes"]), (&(2 * BLOCK / 512).into(), &BLOCK.into()));
    assert!(request["at_device_ns"].as_u64().unwrap() >= AGE_MS * 1_000_000, "{request:#}");
    assert!(request["at_device_ns"].as_u64() <= request["age_ns"].as_u64(), "{request:#}");
    assert_eq!(stuck.len(), 2, "the request, its bio, and nothing else: {stuck:#?}");
    // The bio, the request and the system call; none of them ended.
    assert_eq!(report["losses"]["other_counts"]["in_flight"], 3, "{report:#}");
    assert_eq!((&report["totals"]["requests"], &report["totals"]["bios"]), (&0.into(), &0.into()));
    assert_balanced(&report);
}

/// Minimum age of the request: the time that this test waits.
const AGE_MS: u64 = 50;

fn device<'a>(report: &'a Value, name: &str) -> &'a Value {
    let devices = report["devices"].as_array().unwrap();
    devices.iter().find(|row| row["device"] == name).unwrap_or_else(|| panic!("no {name}: {report:#}"))
}

#[track_caller]
fn assert_balanced(report: &Value) {
    let losses = &report["losses"];
    assert_eq!((&losses["balances"], &losses["total"]), (&true.into(), &0.into()), "{losses:#}");
}

/// A file system that is frozen while this value lives.
struct Frozen(File);

impl Frozen {
    fn freeze(mount_point: &Path) -> Frozen {
        let folder = File::open(mount_point).unwrap();
        // SAFETY: a descriptor; the argument is not used.
        let done = unsafe { libc::ioctl(folder.as_raw_fd(), FIFREEZE, 0) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        Frozen(folder)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::ioctl(self.0.as_raw_fd(), FITHAW, 0) };
    }
}
