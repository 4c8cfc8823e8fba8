//! Probes that programs of others have in them: USDT, as systemtap's `sys/sdt.h` puts them there.
//!
//! *In*: a program's file and the names of its probes. *Out*: places at which the kernel stops a thread (uprobes), with what each
//! is to read there; then [`hits::Hit`]s, in the order of their times, beside the tracer's batches.
//!
//! A probe is one `nop`, and a note that says where it is, where its arguments are, and which counter (a *semaphore*) the program
//! looks at before it makes the arguments. [`notes`] reads the notes, [`arguments`] what they say of arguments, [`attach`] puts a
//! program of the kernel's at the places, and the kernel counts the semaphore up for every process of that file, those to come
//! included. [`cost`] measures what a hit takes here.
//!
//! *Invariant*: a file is hostile: whatever is in it, reading ends, and gives places within its own segments or says why not. Where a
//! probe's arguments cannot be read the probe is refused when it is asked for, and not read wrongly.
//!
//! *Cost*: everybody pays who runs the file: each hit is a trap into the kernel, whether the thread is followed or not.
//!
//! *Rejected*: `bpf_link` for many places at once (uprobe_multi): Linux 6.6 brought it, and 6.1 is served as well. aya's own uprobe: it
//! has no semaphores, without which PostgreSQL's probes are never reached.

pub mod arguments;
pub mod attach;
pub mod cost;
pub mod hits;
pub mod notes;
mod put;

use std::path::{Path, PathBuf};

use blkkin_probe_abi::hit::{ARGUMENTS_MAX, HITS_MAX, Spec};

use arguments::{Argument, ArgumentsError};
use notes::{Note, Notes, NotesError};

/// Why a probe cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsdtError {
    /// The file cannot be understood.
    #[error("{}: {error}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        error: NotesError,
    },
    /// There is no such probe.
    #[error("{} has no probe {name}", file.display())]
    Unknown {
        /// Where it was looked for.
        file: PathBuf,
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// Its arguments cannot be read.
    #[error("the arguments of {name} cannot be read: {error}")]
    Arguments {
        /// Of which probe.
        name: String,
        /// Why.
        error: ArgumentsError,
    },
    /// Text is asked of an argument that is none.
    #[error("{name} has {has} arguments, and no {asked}th to take a text from")]
    NoText {
        /// Of which probe.
        name: String,
        /// How many there are.
        has: usize,
        /// Which was asked for, counted from 1.
        asked: usize,
    },
    /// More than there is room for.
    #[error("{asked} places of probes, and there is room for {HITS_MAX}")]
    TooMany {
        /// How many.
        asked: usize,
    },
}

/// A probe, ready to be put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The program.
    pub file: PathBuf,
    /// `provider:name`
    pub name: String,
    /// What it says.
    pub arguments: Vec<Argument>,
    /// Which of them points at a text that is taken, counted from 0.
    pub text: Option<usize>,
    /// Where in the file it is; several, where a compiler has doubled it. With each, the place of its semaphore, or 0.
    pub places: Vec<(u64, u64)>,
}

impl Probe {
    /// As the kernel side takes it.
    pub(crate) fn spec(&self) -> Spec {
        let mut spec = Spec::default();
        for (place, argument) in spec.arguments.iter_mut().zip(&self.arguments) {
            *place = argument.spec;
        }
        spec.count = self.arguments.len().min(ARGUMENTS_MAX) as u32;
        spec.text = self.text.map_or(0, |text| text as u32 + 1);
        spec
    }
}

/// Finds the probes of these names in a file, each with the argument, counted from 1, that a text is taken of.
pub fn find(file: &Path, asked: &[(String, Option<usize>)]) -> Result<Vec<Probe>, UsdtError> {
    let failed = |error| UsdtError::File { file: file.to_owned(), error };
    let notes = Notes::read(file).map_err(failed)?;
    let probes = asked.iter().map(|(name, text)| one(file, &notes, name, *text));
    let probes: Vec<Probe> = probes.collect::<Result<_, _>>()?;
    let places = probes.iter().map(|probe| probe.places.len()).sum();
    if places > HITS_MAX { Err(UsdtError::TooMany { asked: places }) } else { Ok(probes) }
}

fn one(file: &Path, notes: &Notes, name: &str, text: Option<usize>) -> Result<Probe, UsdtError> {
    let all: Vec<&Note> = notes.all.iter().filter(|note| note.name == name).collect();
    let Some(first) = all.first() else {
        let mut known: Vec<String> = notes.all.iter().map(|note| note.name.clone()).collect();
        known.sort();
        known.dedup();
        return Err(UsdtError::Unknown { file: file.to_owned(), name: name.to_owned(), known });
    };
    let failed = |error| UsdtError::Arguments { name: name.to_owned(), error };
    // Where a probe was doubled its arguments may lie elsewhere each time: then each place would need a row of its own.
    if all.iter().any(|note| note.arguments != first.arguments) {
        return Err(failed(ArgumentsError::Differ));
    }
    let arguments = arguments::parse(&first.arguments).map_err(failed)?;
    if let Some(asked) = text
        && (asked == 0 || asked > arguments.len())
    {
        return Err(UsdtError::NoText { name: name.to_owned(), has: arguments.len(), asked });
    }
    let places = all.iter().map(|note| (note.offset, note.semaphore)).collect();
    Ok(Probe {
        file: file.to_owned(),
        name: name.to_owned(),
        arguments,
        text: text.map(|text| text - 1),
        places,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A program of others with probes, if there is one.
    fn postgres() -> Option<PathBuf> {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        versions.flatten().map(|version| version.path().join("bin/postgres")).find(|path| path.is_file())
    }

    #[test]
    fn a_probe_that_does_not_exist_is_told_with_those_that_do() {
        let Some(file) = postgres() else { return };
        let asked = [("postgresql:statement__status".to_owned(), Some(1))];
        let [probe] = &find(&file, &asked).unwrap()[..] else { panic!() };
        assert_eq!((probe.arguments.len(), probe.text, probe.places.len()), (1, Some(0), 1));
        assert!(probe.places[0].1 > 0, "it has a semaphore");
        let none = find(&file, &[("postgresql:statement__statsu".to_owned(), None)]);
        let Err(UsdtError::Unknown { known, .. }) = none else { panic!("{none:?}") };
        assert!(known.contains(&asked[0].0), "{known:?}");
        let none = find(&file, &[(asked[0].0.clone(), Some(2))]);
        assert!(matches!(none, Err(UsdtError::NoText { has: 1, asked: 2, .. })), "{none:?}");
        // Every form that is there is known.
        let notes = Notes::read(&file).unwrap();
        for note in &notes.all {
            let arguments = arguments::parse(&note.arguments);
            assert!(arguments.is_ok(), "{note:?}: {arguments:?}");
        }
    }
}
