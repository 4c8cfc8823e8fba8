//! USDT probes of other programs, as defined by systemtap's `sys/sdt.h`.
//!
//! *In*: a program's file and the names of its probes. *Out*: uprobe locations with the arguments
//! to read there; then [`UsdtEvent`](blkkin_wire::usdt_event::UsdtEvent)s in time order, next to the tracer's batches.
//!
//! A probe is one `nop`, and a note with its location, its arguments and a *semaphore*: a counter
//! that the program checks before it prepares the arguments. [`stapsdt_notes`] reads the notes,
//! [`arguments`] parses the argument strings, and [`uprobe`] attaches the program. The kernel
//! increments the semaphore in every process of that file, including future ones. [`overhead`]
//! measures the cost of an event.
//!
//! *Invariant*: files are untrusted. Reading any file terminates, and yields locations within its
//! own segments or an error. A probe whose arguments cannot be read is rejected when requested, and
//! never misread.
//!
//! *Cost*: every process that runs the file pays. Each event traps into the kernel, whether the
//! thread is traced or not.
//!
//! *Rejected*: uprobe_multi links, which need Linux 6.6 while 6.1 is supported. aya's uprobes: they
//! lack semaphores, without which PostgreSQL's probes never fire.

pub mod arguments;
pub mod events;
pub mod overhead;
pub mod stapsdt_notes;
pub mod uprobe;

use std::path::{Path, PathBuf};

use blkkin_probe_abi::usdt::{USDT_ARGS_MAX, USDT_PROBES_MAX, UsdtSpec};

use arguments::{Argument, ArgumentsError};
use stapsdt_notes::{Note, Notes, NotesError};

/// Reason why a probe cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsdtError {
    /// The file cannot be parsed.
    #[error("{}: {error}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Cause.
        error: NotesError,
    },
    /// The file has no such probe.
    #[error("{} has no probe {name}", file.display())]
    Unknown {
        /// The file.
        file: PathBuf,
        /// Requested name.
        name: String,
        /// Names of the probes in the file.
        known: Vec<String>,
    },
    /// The arguments cannot be read.
    #[error("the arguments of {name} cannot be read: {error}")]
    Arguments {
        /// Name of the probe.
        name: String,
        /// Cause.
        error: ArgumentsError,
    },
    /// The text argument does not exist.
    #[error("{name} has {has} arguments; argument {requested} does not exist")]
    NoText {
        /// Name of the probe.
        name: String,
        /// Number of arguments.
        has: usize,
        /// Requested argument, counted from 1.
        requested: usize,
    },
    /// More instances than supported.
    #[error("{requested} probe locations; the maximum is {USDT_PROBES_MAX}")]
    TooMany {
        /// Number of instances.
        requested: usize,
    },
}

/// A probe, ready to be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// Program file.
    pub file: PathBuf,
    /// `provider:name`
    pub name: String,
    /// Arguments.
    pub arguments: Vec<Argument>,
    /// Index of the argument that points to a text to copy.
    pub text: Option<usize>,
    /// File offsets of the instances, several if the compiler duplicated the code. Each has the
    /// offset of its semaphore, or 0.
    pub locations: Vec<(u64, u64)>,
}

impl UsdtProbe {
    /// Converts the probe for the kernel side.
    pub(crate) fn spec(&self) -> UsdtSpec {
        let mut spec = UsdtSpec::default();
        for (slot, argument) in spec.arguments.iter_mut().zip(&self.arguments) {
            *slot = argument.spec;
        }
        spec.count = self.arguments.len().min(USDT_ARGS_MAX) as u32;
        spec.text = self.text.map_or(0, |text| text as u32 + 1);
        spec
    }
}

/// Finds probes by name in a file. Each name comes with the number, counted from 1, of the argument
/// that points to a text.
pub fn find(file: &Path, requested: &[(String, Option<usize>)]) -> Result<Vec<UsdtProbe>, UsdtError> {
    let failed = |error| UsdtError::File { file: file.to_owned(), error };
    let notes = Notes::read(file).map_err(failed)?;
    let probes = requested.iter().map(|(name, text)| find_one(file, &notes, name, *text));
    let probes: Vec<UsdtProbe> = probes.collect::<Result<_, _>>()?;
    let locations = probes.iter().map(|probe| probe.locations.len()).sum();
    if locations > USDT_PROBES_MAX { Err(UsdtError::TooMany { requested: locations }) } else { Ok(probes) }
}

fn find_one(file: &Path, notes: &Notes, name: &str, text: Option<usize>) -> Result<UsdtProbe, UsdtError> {
    let all: Vec<&Note> = notes.all.iter().filter(|note| note.name == name).collect();
    let Some(first) = all.first() else {
        let mut known: Vec<String> = notes.all.iter().map(|note| note.name.clone()).collect();
        known.sort();
        known.dedup();
        return Err(UsdtError::Unknown { file: file.to_owned(), name: name.to_owned(), known });
    };
    let failed = |error| UsdtError::Arguments { name: name.to_owned(), error };
    // Duplicated instances may differ in their arguments; each would then need a row of its own.
    if all.iter().any(|note| note.arguments != first.arguments) {
        return Err(failed(ArgumentsError::Differ));
    }
    let arguments = arguments::parse(&first.arguments).map_err(failed)?;
    if let Some(requested) = text
        && (requested == 0 || requested > arguments.len())
    {
        return Err(UsdtError::NoText { name: name.to_owned(), has: arguments.len(), requested });
    }
    let locations = all.iter().map(|note| (note.offset, note.semaphore)).collect();
    Ok(UsdtProbe {
        file: file.to_owned(),
        name: name.to_owned(),
        arguments,
        text: text.map(|text| text - 1),
        locations,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// An installed third-party program with probes, if there is one.
    fn postgres() -> Option<PathBuf> {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        versions.flatten().map(|version| version.path().join("bin/postgres")).find(|path| path.is_file())
    }

    #[test]
    fn unknown_probe_error_lists_the_known_probes() {
        let Some(file) = postgres() else { return };
        let requested = [("postgresql:statement__status".to_owned(), Some(1))];
        let [probe] = &find(&file, &requested).unwrap()[..] else { panic!() };
        assert_eq!((probe.arguments.len(), probe.text, probe.locations.len()), (1, Some(0), 1));
        assert!(probe.locations[0].1 > 0, "it has a semaphore");
        let none = find(&file, &[("postgresql:statement__statsu".to_owned(), None)]);
        let Err(UsdtError::Unknown { known, .. }) = none else { panic!("{none:?}") };
        assert!(known.contains(&requested[0].0), "{known:?}");
        let none = find(&file, &[(requested[0].0.clone(), Some(2))]);
        assert!(matches!(none, Err(UsdtError::NoText { has: 1, requested: 2, .. })), "{none:?}");
        // Every form in use is supported.
        let notes = Notes::read(&file).unwrap();
        for note in &notes.all {
            let arguments = arguments::parse(&note.arguments);
            assert!(arguments.is_ok(), "{note:?}: {arguments:?}");
        }
    }
}
