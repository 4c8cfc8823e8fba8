//! Settings of a disk's queue (/sys/block/NAME/queue), for as long as a test wants them: a loop device outlives what it
//! stood for, and hands its settings to the next who takes it.

use std::fs;
use std::path::PathBuf;

use super::disk::Disk;

/// Settings in force; as before when dropped, which has to be before the disk is.
#[must_use]
pub(crate) struct QueueSettings {
    /// In the order in which they were set.
    before: Vec<(PathBuf, String)>,
}

impl QueueSettings {
    /// Sets these in order, or says which cannot be.
    pub(crate) fn set(disk: &Disk, settings: &[(&str, &str)]) -> Result<QueueSettings, String> {
        let mut set = QueueSettings { before: Vec::new() };
        for (name, value) in settings {
            let path = PathBuf::from(format!("/sys/block/{}/queue/{name}", disk.name()));
            let before = fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
            set.before.push((path.clone(), chosen(&before).to_owned()));
            fs::write(path, value).map_err(|error| format!("{name} cannot be {value}: {error}"))?;
        }
        Ok(set)
    }
}

impl Drop for QueueSettings {
    fn drop(&mut self) {
        for (path, value) in self.before.iter().rev() {
            // A number that the kernel takes to be in force changes nothing (queue_requests_store, block/blk-sysfs.c),
            // and after a change of scheduler it shows a depth that the device's tags do not have.
            if let Some(other) = value.parse::<u32>().ok().filter(|number| *number > 1) {
                let _ = fs::write(path, (other - 1).to_string());
            }
            let _ = fs::write(path, value).inspect_err(|error| println!("{}: {error}", path.display()));
        }
    }
}

/// `none [mq-deadline] kyber`: the one in brackets; any other text is the value itself.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(value, _)| value)
}
