//! Kernel modules whose structures the tracer reads, and those that it could not read.
//!
//! *In*: the folder of the kernel's type information (BTF), when a tracer is loaded and later. *Out*: the
//! type information of each loaded module, and the modules that were loaded after it was read.
//! *Invariant*: a module that is built in is never named: its types are the kernel's, and it has no file.
//!
//! *Rejected*: to read the types of such a module when it is loaded. Offsets are constants of the programs,
//! which the verifier has checked. *Rejected*: the module's file on the disk. It is compressed by one of
//! three methods, and may be of another build than the one that is loaded later.

use std::path::PathBuf;

/// Folder of the type information of the kernel and its modules.
const FOLDER: &str = "/sys/kernel/btf";

/// Modules with fields of [`layout`](super::layout) or [`stacked_layouts`](super::stacked_layouts), where
/// they are not built in.
const MODULES: &[&str] =
    &["ext4", "jbd2", "xfs", "btrfs", "overlay", "loop", "dm_mod", "dm_crypt", "md_mod", "raid1", "raid10"];

/// Modules that were not loaded when a tracer read the kernel's types.
#[derive(Clone, Debug, Default)]
pub struct UnreadModules {
    folder: PathBuf,
    absent: Vec<&'static str>,
}

impl UnreadModules {
    /// Returns the modules that were loaded since: the tracer has none of their offsets.
    pub fn loaded_since(&self) -> Vec<&'static str> {
        self.absent.iter().copied().filter(|module| self.folder.join(module).exists()).collect()
    }

    /// Returns a sentence that names these modules; none if there are none.
    pub fn note(&self) -> Option<String> {
        let modules = self.loaded_since();
        let (noun, verb, pronoun) = match modules.len() {
            0 => return None,
            1 => ("module", "was", "its"),
            _ => ("modules", "were", "their"),
        };
        let names = modules.join(", ");
        Some(format!(
            "the kernel {noun} {names} {verb} loaded after tracing began; {pronoun} structures are unknown until tracing starts again"
        ))
    }
}

/// Reads the type information of the loaded modules.
pub(super) fn read() -> (Vec<Vec<u8>>, UnreadModules) {
    read_in(FOLDER.into())
}

fn read_in(folder: PathBuf) -> (Vec<Vec<u8>>, UnreadModules) {
    let (mut types, mut absent) = (Vec::new(), Vec::new());
    for module in MODULES {
        match std::fs::read(folder.join(module)) {
            Ok(bytes) => types.push(bytes),
            Err(_) => absent.push(*module),
        }
    }
    (types, UnreadModules { folder, absent })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_module_is_named_if_it_was_loaded_after_its_types_could_be_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("xfs"), "types").unwrap();
        let (types, unread) = read_in(folder.path().into());
        assert_eq!(types, [b"types"]);
        assert_eq!(unread.note(), None);
        std::fs::write(folder.path().join("overlay"), "").unwrap();
        assert_eq!(unread.loaded_since(), ["overlay"]);
        assert!(unread.note().unwrap().contains("module overlay was loaded"));
        std::fs::write(folder.path().join("loop"), "").unwrap();
        assert!(unread.note().unwrap().contains("modules overlay, loop were"));
    }
}
