//! Settings of the kernel's memory management (/proc/sys/vm) for the time of a test.

use std::fs;
use std::path::PathBuf;

/// Settings in force. Dropping restores the previous values.
#[must_use]
pub(crate) struct VmSettings {
    before: Vec<(PathBuf, String)>,
}

impl VmSettings {
    /// Changes these settings. Of a ratio and its bytes one is 0: the one that was not set last, which is not restored.
    pub(crate) fn set(settings: &[(&str, u64)]) -> VmSettings {
        let path = |name: &str| PathBuf::from("/proc/sys/vm").join(name);
        let related =
            settings.iter().flat_map(|(name, _)| [(*name).to_owned(), name.replace("bytes", "ratio")]);
        let mut names: Vec<String> = related.collect();
        names.dedup();
        let read = |name: &String| (path(name), fs::read_to_string(path(name)).unwrap().trim().to_owned());
        let is_pair =
            |path: &PathBuf| ["bytes", "ratio"].iter().any(|end| path.to_string_lossy().ends_with(end));
        let before = names.iter().map(read).filter(|(path, value)| !is_pair(path) || value != "0").collect();
        settings.iter().for_each(|(name, value)| fs::write(path(name), value.to_string()).unwrap());
        VmSettings { before }
    }
}

impl Drop for VmSettings {
    fn drop(&mut self) {
        self.before.iter().for_each(|(path, value)| fs::write(path, value).unwrap());
    }
}
