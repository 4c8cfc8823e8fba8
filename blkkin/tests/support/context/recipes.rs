//! Recipes of the programs: sources, compiler and options.

use std::path::Path;
use std::process::Command;

use crate::support::tools::is_installed;

const SOURCES: [(&str, &str); 15] = [
    ("thread_context.h", include_str!("thread_context.h")),
    ("slot.c", include_str!("slot.c")),
    ("writer.c", include_str!("writer.c")),
    ("threads.c", include_str!("threads.c")),
    ("async_reads.c", include_str!("async_reads.c")),
    ("tasks.cc", include_str!("tasks.cc")),
    ("hostile.c", include_str!("hostile.c")),
    ("two_slots.c", include_str!("two_slots.c")),
    ("user_change.c", include_str!("user_change.c")),
    ("library_churn.c", include_str!("library_churn.c")),
    ("leader_exit.c", include_str!("leader_exit.c")),
    ("process_context.c", include_str!("process_context.c")),
    ("process_context.h", include_str!("process_context.h")),
    ("thread_attributes.c", include_str!("thread_attributes.c")),
    ("page_faults.c", include_str!("page_faults.c")),
];

/// Sources that are built together.
pub(super) struct Recipe {
    pub(super) name: &'static str,
    compiler: &'static str,
    /// Libraries with a slot, and their compiler options.
    libraries: &'static [&'static str],
    library_options: &'static str,
    /// Options and sources of the program.
    program: &'static str,
}

const OWN: &str = "-pthread -o program writer.c slot.c -DOWN -rdynamic -ldl";
/// A static program. The linker exports the variable only if it is named: `-rdynamic` has no effect
/// in a static link.
const STATIC: &str =
    "-static-pie -w -pthread -o program writer.c slot.c -DOWN -Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
const LINKED: &str = "-pthread -o program writer.c -DOWN -L. -lslot -Wl,-rpath,$ORIGIN -ldl";
const LOADS: &str = "-pthread -o program writer.c -ldl";

/// musl's gcc wrapper has no `-static-pie`: the start files are named and the loader is omitted.
const MUSL_STATIC: &str = "-w -fPIE -nostartfiles -static \
    -Wl,-pie,--no-dynamic-linker,--export-dynamic-symbol=otel_thread_ctx_v1 \
    -l:rcrt1.o -l:crti.o -o program writer.c slot.c -DOWN -l:crtn.o";

/// TLS access models by which a library finds its own slot: an offset from the thread pointer, a
/// module number, a descriptor.
const INITIAL_EXEC: &str = "-ftls-model=initial-exec";
const MODULE: &str = "-mtls-dialect=gnu";
const DESCRIPTOR: &str = "-mtls-dialect=gnu2";

const fn program_only(name: &'static str, program: &'static str) -> Recipe {
    Recipe { name, compiler: "gcc", libraries: &[], library_options: "", program }
}

const fn recipe(name: &'static str, library_options: &'static str, program: &'static str) -> Recipe {
    Recipe { libraries: &["libslot.so"], library_options, ..program_only(name, program) }
}

impl Recipe {
    const fn with_compiler(self, compiler: &'static str) -> Recipe {
        Recipe { compiler, ..self }
    }
}

pub(super) const RECIPES: &[Recipe] = &[
    program_only("own", OWN),
    program_only("static", STATIC),
    recipe("linked-distance", INITIAL_EXEC, LINKED),
    recipe("linked-module", MODULE, LINKED),
    recipe("linked-descriptor", DESCRIPTOR, LINKED),
    recipe("loaded-distance", INITIAL_EXEC, LOADS),
    recipe("loaded-module", MODULE, LOADS),
    recipe("loaded-descriptor", DESCRIPTOR, LOADS),
    recipe("loaded-module-read", "-mtls-dialect=gnu -DMAPS_OWN_FILE", LOADS),
    recipe("loaded-descriptor-read", "-mtls-dialect=gnu2 -DMAPS_OWN_FILE", LOADS),
    program_only("musl-own", OWN).with_compiler("musl-gcc"),
    program_only("musl-static", MUSL_STATIC).with_compiler("musl-gcc"),
    recipe("musl-linked-distance", INITIAL_EXEC, LINKED).with_compiler("musl-gcc"),
    recipe("musl-linked-module", MODULE, LINKED).with_compiler("musl-gcc"),
    recipe("musl-linked-descriptor", DESCRIPTOR, LINKED).with_compiler("musl-gcc"),
    // musl's loader refuses to load a library with the initial-exec model at run time.
    recipe("musl-loaded-module", MODULE, LOADS).with_compiler("musl-gcc"),
    recipe("musl-loaded-descriptor", DESCRIPTOR, LOADS).with_compiler("musl-gcc"),
    program_only("threads-own", "-pthread -o program threads.c slot.c -DOWN -rdynamic -ldl"),
    recipe("threads-loaded-module", MODULE, "-pthread -o program threads.c -ldl"),
    recipe("threads-musl-loaded-module", MODULE, "-pthread -o program threads.c").with_compiler("musl-gcc"),
    program_only("async-reads", "-o program async_reads.c slot.c -rdynamic"),
    program_only("tasks", "-std=c++20 -pthread -o program tasks.cc -rdynamic").with_compiler("g++"),
    program_only("hostile", "-o program hostile.c slot.c -rdynamic"),
    program_only("user-change", "-o program user_change.c slot.c -rdynamic"),
    program_only("leader-exit", "-pthread -o program leader_exit.c slot.c -rdynamic"),
    program_only("page-faults", "-o program page_faults.c slot.c -rdynamic"),
    program_only("process-context", "-o program process_context.c"),
    program_only("thread-attributes", "-pthread -o program thread_attributes.c slot.c -rdynamic"),
    Recipe {
        libraries: &["libslot.so", "libother.so"],
        ..recipe("two-slots", MODULE, "-o program two_slots.c -ldl")
    },
    Recipe {
        libraries: &["libslot.so", "libother.so -Dotel_thread_ctx_v1=other"],
        ..recipe("library-churn", MODULE, "-o program library_churn.c -ldl")
    },
];

impl Recipe {
    /// Returns whether guests get the program. The behaviour of another loader does not depend on
    /// the kernel.
    pub(super) fn is_for_guests(&self) -> bool {
        self.compiler != "musl-gcc"
    }

    /// Builds the program in this folder, or returns why it cannot.
    pub(super) fn build(&self, folder: &Path) -> Result<(), String> {
        let compiler = self.compiler;
        if !is_installed(compiler) {
            return Err(format!("{compiler} is not installed"));
        }
        for (name, text) in SOURCES {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let compile = |options: &str| {
            let output =
                Command::new(compiler).current_dir(folder).args(options.split_whitespace()).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{compiler} {options}: {errors}");
        };
        for library in self.libraries {
            compile(&format!("-O1 -shared -fPIC {} slot.c -o {library}", self.library_options));
        }
        compile(&format!("-O1 {}", self.program));
        SOURCES.iter().for_each(|(name, _)| std::fs::remove_file(folder.join(name)).unwrap());
        Ok(())
    }
}
