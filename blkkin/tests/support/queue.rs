//! Settings of a disk's queue (/sys/block/NAME/queue) for the time of a test. A loop device
//! outlives its backing file and passes its settings to its next user.

use std::fs;
use std::path::PathBuf;

use super::disk::Disk;

/// Settings in force. Dropping restores the previous values, and must happen before the disk is
/// dropped.
#[must_use]
pub(crate) struct QueueSettings {
    /// Previous values, in the order in which the settings were changed.
    before: Vec<(PathBuf, String)>,
}

impl QueueSettings {
    /// Changes these settings in order, or returns which one cannot be changed.
    pub(crate) fn set(disk: &Disk, settings: &[(&str, &str)]) -> Result<QueueSettings, String> {
        let mut set = QueueSettings { before: Vec::new() };
        for (name, value) in settings {
            let path = PathBuf::from(format!("/sys/block/{}/queue/{name}", disk.name()));
            let before = fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
            set.before.push((path.clone(), current(&before).to_owned()));
            fs::write(path, value).map_err(|error| format!("{name} cannot be {value}: {error}"))?;
        }
        Ok(set)
    }
}

impl Drop for QueueSettings {
    fn drop(&mut self) {
        for (path, value) in self.before.iter().rev() {
            // Writing the number that the kernel takes to be in force changes nothing
            // (queue_requests_store, block/blk-sysfs.c). After a change of scheduler it shows a
            // depth that the device's tags do not have.
            if let Some(other) = value.parse::<u32>().ok().filter(|number| *number > 1) {
                let _ = fs::write(path, (other - 1).to_string());
            }
            let _ = fs::write(path, value).inspect_err(|error| println!("{}: {error}", path.display()));
        }
    }
}

/// Returns the word in brackets, as in `none [mq-deadline] kyber`, or the whole text.
fn current(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(value, _)| value)
}
