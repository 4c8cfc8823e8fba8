//! What is built of what, by which compiler.

use std::path::Path;
use std::process::Command;

use crate::support::tools::is_installed;

const SOURCES: [(&str, &str); 14] = [
    ("thread.h", include_str!("thread.h")),
    ("slot.c", include_str!("slot.c")),
    ("writer.c", include_str!("writer.c")),
    ("threads.c", include_str!("threads.c")),
    ("later.c", include_str!("later.c")),
    ("tasks.cc", include_str!("tasks.cc")),
    ("hostile.c", include_str!("hostile.c")),
    ("twice.c", include_str!("twice.c")),
    ("changes.c", include_str!("changes.c")),
    ("churn.c", include_str!("churn.c")),
    ("leader.c", include_str!("leader.c")),
    ("says.c", include_str!("says.c")),
    ("process.h", include_str!("process.h")),
    ("more.c", include_str!("more.c")),
];

/// What is built together.
pub(super) struct Recipe {
    pub(super) name: &'static str,
    compiler: &'static str,
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

/// musl's wrapper of gcc knows no `-static-pie`: what begins such a program is named, and who would load it is not.
const MUSL_STATIC: &str = "-w -fPIE -nostartfiles -static \
    -Wl,-pie,--no-dynamic-linker,--export-dynamic-symbol=otel_thread_ctx_v1 \
    -l:rcrt1.o -l:crti.o -o program writer.c slot.c -DOWN -l:crtn.o";

/// The ways in which a library finds its own slot: by its distance from the thread pointer, by its module's number, by a
/// descriptor.
const DISTANCE: &str = "-ftls-model=initial-exec";
const MODULE: &str = "-mtls-dialect=gnu";
const DESCRIPTOR: &str = "-mtls-dialect=gnu2";

const fn alone(name: &'static str, program: &'static str) -> Recipe {
    Recipe { name, compiler: "gcc", libraries: &[], how: "", program }
}

const fn recipe(name: &'static str, how: &'static str, program: &'static str) -> Recipe {
    Recipe { libraries: &["libslot.so"], how, ..alone(name, program) }
}

impl Recipe {
    const fn by(self, compiler: &'static str) -> Recipe {
        Recipe { compiler, ..self }
    }
}

pub(super) const RECIPES: &[Recipe] = &[
    alone("own", OWN),
    alone("static", STATIC),
    recipe("linked-distance", DISTANCE, LINKED),
    recipe("linked-module", MODULE, LINKED),
    recipe("linked-descriptor", DESCRIPTOR, LINKED),
    recipe("loaded-distance", DISTANCE, LOADS),
    recipe("loaded-module", MODULE, LOADS),
    recipe("loaded-descriptor", DESCRIPTOR, LOADS),
    recipe("loaded-module-read", "-mtls-dialect=gnu -DREADS_ITSELF", LOADS),
    recipe("loaded-descriptor-read", "-mtls-dialect=gnu2 -DREADS_ITSELF", LOADS),
    alone("musl-own", OWN).by("musl-gcc"),
    alone("musl-static", MUSL_STATIC).by("musl-gcc"),
    recipe("musl-linked-distance", DISTANCE, LINKED).by("musl-gcc"),
    recipe("musl-linked-module", MODULE, LINKED).by("musl-gcc"),
    recipe("musl-linked-descriptor", DESCRIPTOR, LINKED).by("musl-gcc"),
    // Its loader refuses one that wants a distance and was not there from the beginning.
    recipe("musl-loaded-module", MODULE, LOADS).by("musl-gcc"),
    recipe("musl-loaded-descriptor", DESCRIPTOR, LOADS).by("musl-gcc"),
    alone("threads-own", "-pthread -o program threads.c slot.c -DOWN -rdynamic -ldl"),
    recipe("threads-loaded-module", MODULE, "-pthread -o program threads.c -ldl"),
    recipe("threads-musl-loaded-module", MODULE, "-pthread -o program threads.c").by("musl-gcc"),
    alone("later", "-o program later.c slot.c -rdynamic"),
    alone("tasks", "-std=c++20 -pthread -o program tasks.cc -rdynamic").by("g++"),
    alone("hostile", "-o program hostile.c slot.c -rdynamic"),
    alone("changes", "-o program changes.c slot.c -rdynamic"),
    alone("leader", "-pthread -o program leader.c slot.c -rdynamic"),
    alone("says", "-o program says.c"),
    alone("more", "-pthread -o program more.c slot.c -rdynamic"),
    Recipe {
        libraries: &["libslot.so", "libother.so"],
        ..recipe("twice", MODULE, "-o program twice.c -ldl")
    },
    Recipe {
        libraries: &["libslot.so", "libother.so -Dotel_thread_ctx_v1=other"],
        ..recipe("churn", MODULE, "-o program churn.c -ldl")
    },
];

impl Recipe {
    /// Whether a guest is given it: what another loader does is no matter of the kernel's.
    pub(super) fn is_for_guests(&self) -> bool {
        self.compiler != "musl-gcc"
    }

    /// Builds it there; or why not.
    pub(super) fn build(&self, folder: &Path) -> Result<(), String> {
        let compiler = self.compiler;
        if !is_installed(compiler) {
            return Err(format!("{compiler} is not installed"));
        }
        for (name, text) in SOURCES {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let compile = |words: &str| {
            let output =
                Command::new(compiler).current_dir(folder).args(words.split_whitespace()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{compiler} {words}: {said}");
        };
        for library in self.libraries {
            compile(&format!("-O1 -shared -fPIC {} slot.c -o {library}", self.how));
        }
        compile(&format!("-O1 {}", self.program));
        SOURCES.iter().for_each(|(name, _)| std::fs::remove_file(folder.join(name)).unwrap());
        Ok(())
    }
}
