//! C and C++ programs whose threads publish a thread context, compiled for a test or, for a guest,
//! with its archive ([`recipes`]).
//!
//! [`recorded_program`] records them, and compares each call with the span that the program itself
//! encodes in the call's offset.

mod recipes;
pub(crate) mod recorded_program;
pub(crate) mod scripted_program;

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use recipes::RECIPES;

/// Folder in a guest with one folder of programs for each recipe.
const GUEST_FOLDER: &str = "/context";

/// The programs and libraries of one recipe.
pub(crate) struct Programs {
    folder: PathBuf,
    /// Folder for files of a run and, outside of guests, for the programs.
    run_folder: TempDir,
}

impl Programs {
    /// Builds the programs of a recipe, or returns why it cannot.
    pub(crate) fn of(name: &str) -> Result<Programs, String> {
        let (run_folder, built) = (tempfile::tempdir().unwrap(), Path::new(GUEST_FOLDER).join(name));
        if built.is_dir() {
            return Ok(Programs { folder: built, run_folder });
        }
        let recipe = RECIPES.iter().find(|recipe| recipe.name == name).unwrap();
        recipe.build(run_folder.path())?;
        Ok(Programs { folder: run_folder.path().to_owned(), run_folder })
    }

    /// Returns the path of the program.
    pub(crate) fn program(&self) -> String {
        self.path("program")
    }

    /// Returns the library argument of a program: its path, or `-` if the program loads none.
    pub(crate) fn library(&self, wanted: bool) -> String {
        if wanted { self.path("libslot.so") } else { "-".to_owned() }
    }

    /// Returns the path of a built file.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Returns the file whose creation makes the program leave its warm-up.
    pub(crate) fn go(&self) -> PathBuf {
        self.run_folder.path().join("go")
    }
}

/// Builds the programs of all recipes for guests, each in a folder of its own.
pub(crate) fn build_all(target: &Path) {
    for recipe in RECIPES.iter().filter(|recipe| recipe.is_for_guests()) {
        let folder = target.join(recipe.name);
        std::fs::create_dir_all(&folder).unwrap();
        recipe.build(&folder).unwrap();
    }
}
