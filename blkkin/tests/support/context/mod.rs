//! Programs whose threads say which span they work for, in C and C++: built where they are run, or, for a guest, where its archive is
//! made ([`recipes`]); and what was recorded of them, judged by what they say themselves ([`play`]).

pub(crate) mod play;
mod recipes;
pub(crate) mod speaker;

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use recipes::RECIPES;

/// Where a guest has them, each recipe's in a folder of its own.
const BUILT: &str = "/context";

/// What was built by one of the recipes.
pub(crate) struct Programs {
    folder: PathBuf,
    /// For what a run leaves, and elsewhere than in a guest for the programs too.
    own: TempDir,
}

impl Programs {
    /// By its name; or why not.
    pub(crate) fn of(name: &str) -> Result<Programs, String> {
        let (own, built) = (tempfile::tempdir().unwrap(), Path::new(BUILT).join(name));
        if built.is_dir() {
            return Ok(Programs { folder: built, own });
        }
        let recipe = RECIPES.iter().find(|recipe| recipe.name == name).unwrap();
        recipe.build(own.path())?;
        Ok(Programs { folder: own.path().to_owned(), own })
    }

    /// The program.
    pub(crate) fn program(&self) -> String {
        self.at("program")
    }

    /// What a program that loads one is told; `-` to one that does not.
    pub(crate) fn library(&self, wanted: bool) -> String {
        if wanted { self.at("libslot.so") } else { "-".to_owned() }
    }

    /// Of those that were built.
    pub(crate) fn at(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// There once the program may begin in earnest.
    pub(crate) fn go(&self) -> PathBuf {
        self.own.path().join("go")
    }
}

/// Builds all that a guest is given, each into a folder of its own.
pub(crate) fn build_all(into: &Path) {
    for recipe in RECIPES.iter().filter(|recipe| recipe.is_for_guests()) {
        let folder = into.join(recipe.name);
        std::fs::create_dir_all(&folder).unwrap();
        recipe.build(&folder).unwrap();
    }
}
