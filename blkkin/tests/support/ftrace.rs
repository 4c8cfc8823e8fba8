//! A private ftrace instance, which contains no events of other users.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::tools::{capture, tool};

/// Instances made so far; tests of one process run at the same time.
static CREATED: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Ftrace {
    mounted: PathBuf,
    instance: PathBuf,
}

impl Ftrace {
    /// Creates an instance with `kib` KiB for each CPU and no event enabled, or returns why there
    /// is none. tracefs is mounted in `folder`.
    pub(crate) fn create(folder: &Path, kib: &str) -> Result<Ftrace, String> {
        let mounted = folder.join("tracefs");
        fs::create_dir_all(&mounted).map_err(|error| error.to_string())?;
        capture(tool("mount").args(["-t", "tracefs", "nodev"]).arg(&mounted))?;
        let name = format!("blkkin-{}-{}", std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let instance = mounted.join("instances").join(name);
        let trace = Ftrace { mounted, instance };
        fs::create_dir(&trace.instance).map_err(|error| error.to_string())?;
        trace.set("buffer_size_kb", kib)?;
        Ok(trace)
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), String> {
        fs::write(self.instance.join(name), value).map_err(|error| format!("{name}: {error}"))
    }

    /// Stops recording and returns the trace; fails if the buffer was too small.
    pub(crate) fn finish(self) -> String {
        self.set("tracing_on", "0").unwrap();
        let text = fs::read_to_string(self.instance.join("trace")).unwrap();
        let entries =
            text.lines().find_map(|line| line.strip_prefix("# entries-in-buffer/entries-written: "));
        let (kept, written) = entries.unwrap().split_whitespace().next().unwrap().split_once('/').unwrap();
        assert_eq!(kept, written, "ftrace's buffer was too small");
        text
    }
}

/// Parses a time of ftrace in ns: seconds with six decimals.
pub(crate) fn time_ns(text: &str) -> Option<u64> {
    let (seconds, micros) = text.split_once('.').filter(|(_, micros)| micros.len() == 6)?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1_000)
}

impl Drop for Ftrace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
        let _ = capture(tool("umount").arg(&self.mounted));
    }
}
