//! A program that follows its words, in a folder of its own, and waits where it is told to.

use std::path::PathBuf;

use tempfile::TempDir;

use super::Programs;
use crate::support::actor::Actor;

pub(crate) struct Speaker {
    pub(crate) actor: Actor,
    folder: TempDir,
}

impl Speaker {
    /// `await=` and a name: of a file in its own folder.
    pub(crate) fn new(programs: &Programs, words: &[&str]) -> Speaker {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), [0; 4096]).unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let word = |word: &&str| match word.strip_prefix("await=") {
            Some(name) => format!("await={}", at(name)),
            None => (*word).to_owned(),
        };
        let mut all = vec![programs.program(), at("file")];
        all.extend(words.iter().map(word));
        let actor = Actor::program(&all, &folder.path().join("out"));
        Speaker { actor, folder }
    }

    /// What it waits for by that name is there.
    pub(crate) fn goes_on(&self, name: &str) {
        std::fs::write(self.path(name), "").unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
