//! Programs whose threads say which span they work for, in C: built where they are run, or, for a guest, where its archive is made.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::tools::is_installed;

/// Where a guest has them, each recipe's in a folder of its own.
const BUILT: &str = "/context";

const SOURCES: [(&str, &str); 7] = [
    ("thread.h", include_str!("thread.h")),
    ("slot.c", include_str!("slot.c")),
    ("writer.c", include_str!("writer.c")),
    ("hostile.c", include_str!("hostile.c")),
    ("twice.c", include_str!("twice.c")),
    ("changes.c", include_str!("changes.c")),
    ("says.c", include_str!("says.c")),
];

/// What is built together.
struct Recipe {
    name: &'static str,
    /// Libraries with a slot, and what the compiler is told of them.
    libraries: &'static [&'static str],
    how: &'static str,
    /// And the program.
    program: &'static str,
}

const OWN: &str = "-pthread -o program writer.c slot.c -DOWN -rdynamic -ldl";
/// With all that it needs in it. The linker gives the variable to nobody unless it is told to, by its name: what `-rdynamic` says to it is
/// lost in a static link.
const STATIC: &str =
    "-static-pie -w -pthread -o program writer.c slot.c -DOWN -Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
const LINKED: &str = "-pthread -o program writer.c -DOWN -L. -lslot -Wl,-rpath,$ORIGIN -ldl";
const LOADS: &str = "-pthread -o program writer.c -ldl";

/// The ways in which a library finds its own slot: by its distance from the thread pointer, by its module's number, by a
/// descriptor.
const DISTANCE: &str = "-ftls-model=initial-exec";
const MODULE: &str = "-mtls-dialect=gnu";
const DESCRIPTOR: &str = "-mtls-dialect=gnu2";

const fn recipe(name: &'static str, how: &'static str, program: &'static str) -> Recipe {
    Recipe { name, libraries: &["libslot.so"], how, program }
}

const RECIPES: &[Recipe] = &[
    Recipe { name: "own", libraries: &[], how: "", program: OWN },
    Recipe { name: "static", libraries: &[], how: "", program: STATIC },
    recipe("linked-distance", DISTANCE, LINKED),
    recipe("linked-module", MODULE, LINKED),
    recipe("linked-descriptor", DESCRIPTOR, LINKED),
    recipe("loaded-distance", DISTANCE, LOADS),
    recipe("loaded-module", MODULE, LOADS),
    recipe("loaded-descriptor", DESCRIPTOR, LOADS),
    Recipe { name: "hostile", libraries: &[], how: "", program: "-o program hostile.c slot.c -rdynamic" },
    Recipe { name: "changes", libraries: &[], how: "", program: "-o program changes.c slot.c -rdynamic" },
    Recipe { name: "says", libraries: &[], how: "", program: "-o program says.c" },
    Recipe {
        name: "twice",
        libraries: &["libslot.so", "libother.so"],
        how: MODULE,
        program: "-o program twice.c -ldl",
    },
];

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

/// Builds all, each into a folder of its own.
pub(crate) fn build_all(into: &Path) {
    for recipe in RECIPES {
        let folder = into.join(recipe.name);
        std::fs::create_dir_all(&folder).unwrap();
        recipe.build(&folder).unwrap();
    }
}

impl Recipe {
    fn build(&self, folder: &Path) -> Result<(), String> {
        if !is_installed("gcc") {
            return Err("gcc is not installed".to_owned());
        }
        for (name, text) in SOURCES {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let gcc = |words: &str| {
            let mut command = Command::new("gcc");
            let output = command.current_dir(folder).args(words.split(' ')).output().unwrap();
            assert!(output.status.success(), "gcc {words}: {}", String::from_utf8_lossy(&output.stderr));
        };
        for library in self.libraries {
            gcc(&format!("-O1 -shared -fPIC {} slot.c -o {library}", self.how));
        }
        gcc(&format!("-O1 {}", self.program));
        SOURCES.iter().for_each(|(name, _)| std::fs::remove_file(folder.join(name)).unwrap());
        Ok(())
    }
}
