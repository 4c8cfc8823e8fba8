//! `--device`: a block device by name (`sda1`), by its file (`/dev/sda1`, `/dev/disk/by-id/…`) or
//! by its numbers (`8:1`).

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use blkkin_tracer::enrich::devices::disk_of_partition;
use blkkin_wire::ids::DeviceId;
use tracing::warn;

use crate::error::CliError;
use crate::suggest::suggest;

/// Resolves a device. `example` is an option with a device, for an error.
pub(crate) fn device(name: &str, example: impl Fn(&str) -> String) -> Result<DeviceId, CliError> {
    if name.starts_with('/') {
        return of_file(Path::new(name));
    }
    if let Some(id) = numbers(name) {
        return if is_listed(id) { Ok(id) } else { Err(unknown(name, example)) };
    }
    of_name(name).ok_or_else(|| unknown(name, example))
}

/// Returns whether this machine has no device of this name.
pub(crate) fn is_absent(name: &str) -> bool {
    match numbers(name) {
        _ if name.starts_with('/') => !Path::new(name).exists(),
        Some(id) => !is_listed(id),
        None => of_name(name).is_none(),
    }
}

fn is_listed(id: DeviceId) -> bool {
    names().iter().any(|name| of_name(name) == Some(id))
}

/// The folder in which the kernel lists its block devices, disks and partitions alike.
const DEVICES: &str = "/sys/class/block";

/// Adds the partitions of the disks, as far as `max` devices allow. The device of a file is that of its partition, so
/// without them a buffered write to a file on the disk would not pass.
pub(crate) fn with_partitions(mut devices: Vec<DeviceId>, max: usize) -> Vec<DeviceId> {
    for partition in partitions(&devices) {
        if devices.contains(&partition) {
            continue;
        }
        if devices.len() == max {
            warn!(
                "--device: {partition} and later partitions are one device too many: calls that write to the page cache of \
                 their files are not recorded; name the partition instead of the disk"
            );
            break;
        }
        devices.push(partition);
    }
    devices
}

/// Returns the partitions of the disks among these devices: in the order of the disks, then by number.
fn partitions(devices: &[DeviceId]) -> Vec<DeviceId> {
    if devices.is_empty() {
        return Vec::new();
    }
    let with_disk = |partition| {
        let disk = disk_of_partition(partition)?;
        Some((devices.iter().position(|device| *device == disk)?, partition))
    };
    let all = names().into_iter().filter_map(|name| of_name(&name));
    let mut found: Vec<(usize, DeviceId)> = all.filter_map(with_disk).collect();
    found.sort_unstable_by_key(|(disk, partition)| (*disk, partition.major, partition.minor));
    found.into_iter().map(|(_, partition)| partition).collect()
}

fn of_file(path: &Path) -> Result<DeviceId, CliError> {
    let displayed = path.display();
    let metadata = fs::metadata(path)
        .map_err(|error| CliError::usage(format!("cannot examine device {displayed}"), error, listing()))?;
    if !metadata.file_type().is_block_device() {
        let remedy = format!("--path {displayed} for I/O to a file, or\n{}", listing());
        return Err(CliError::usage(
            format!("{displayed} is not a block device"),
            "the file is not a block device's",
            remedy,
        ));
    }
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    Ok(DeviceId { major, minor })
}

/// Resolves a device name, which may contain a slash; sysfs writes it as an exclamation mark.
fn of_name(name: &str) -> Option<DeviceId> {
    let name = name.replace('/', "!");
    // A name must not leave the folder.
    if name.is_empty() || name.starts_with('.') {
        return None;
    }
    numbers(fs::read_to_string(Path::new(DEVICES).join(name).join("dev")).ok()?.trim())
}

fn numbers(text: &str) -> Option<DeviceId> {
    let (major, minor) = text.split_once(':')?;
    Some(DeviceId { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(DEVICES)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().replace('!', "/")).collect())
        .unwrap_or_default();
    names.sort();
    names
}

fn unknown(name: &str, example: impl Fn(&str) -> String) -> CliError {
    let names = names();
    let remedy = match suggest(name, names.iter().map(String::as_str)) {
        Some(near) => example(near),
        None => listing(),
    };
    CliError::usage(format!("unknown device `{name}`"), format!("not in {DEVICES}"), remedy)
}

/// Maximum number of names to list: a machine may have thousands of devices.
const LISTED_MAX: usize = 12;

fn listing() -> String {
    let names = names();
    let more = if names.len() > LISTED_MAX { " …" } else { "" };
    let listed: Vec<_> = names.iter().take(LISTED_MAX).map(String::as_str).collect();
    format!("one of {}{more} (lsblk shows them)", listed.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn device(name: &str) -> Result<DeviceId, CliError> {
        super::device(name, |name| format!("--device {name}"))
    }

    #[test]
    fn parses_device_numbers() {
        assert_eq!(numbers("259:12"), Some(DeviceId { major: 259, minor: 12 }));
        assert_eq!(numbers("8:"), None);
        assert_eq!(numbers("sda"), None);
    }

    #[test]
    fn each_device_has_one_id_by_name_and_by_numbers() {
        for name in names() {
            let id = device(&name).unwrap();
            assert_eq!(device(&id.to_string()).unwrap(), id, "{name}");
        }
    }

    #[test]
    fn unknown_devices_are_refused() {
        assert!(device("/dev/null").unwrap_err().why.contains("not a block device"));
        assert!(device("/dev/nothing-of-this-name").unwrap_err().what.contains("nothing-of-this-name"));
        assert!(device("../../etc").unwrap_err().what.contains("unknown device"));
        assert!(device("4095:1048575").unwrap_err().what.contains("unknown device"));
        assert!(device("").is_err());
    }
}
