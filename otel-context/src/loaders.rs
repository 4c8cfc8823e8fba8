//! Tests with real loaders: programs of glibc and musl, native and on aarch64 (emulated by
//! qemu-user), print the addresses of their threads' variables, and the scan must find the same.
//!
//! The program is `loaders/tls_slot.c`. The variable is in the program, in a library linked to it,
//! or in a library loaded later. It is accessed by TP offset, module or TLS descriptor. An emulated
//! program's mappings are those of the emulator, at the same addresses.
//!
//! *Not covered*: musl on aarch64, for which no compiler is packaged; [`crate::tests`] has a
//! hand-written case.

#![allow(clippy::print_stdout, reason = "a test that cannot run reports why")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::elf::{Image, Machine};
use crate::memory::ProcessMemory;
use crate::scan::{SlotLookup, lookup_in};
use crate::tls::{Libc, ThreadContextSlot, TlsLocation};

use Access::{Dynamic, Static};

const SOURCE: &str = include_str!("loaders/tls_slot.c");
const ALWAYS: &str = "-O1 -w -pthread";
const LIBRARY: &str = "-DLIBRARY -fPIC -shared tls_slot.c -o libslot.so";
const OWN: &str = "-DOWN -fPIE -rdynamic tls_slot.c -o program -ldl";
const STATIC: &str =
    "-DOWN -fPIE -static-pie tls_slot.c -o program -Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
const LINKED: &str = "-DLINKED tls_slot.c -o program -L. -lslot -Wl,-rpath,$ORIGIN -ldl";
const LOADS: &str = "tls_slot.c -o program -ldl";
const DISTANCE: &str = "-ftls-model=initial-exec";

/// Kind of the expected location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Static,
    Dynamic,
}

/// A compiler, an emulator, and the options for two TLS access models.
struct Target {
    compiler: &'static str,
    emulator: &'static [&'static str],
    machine: Machine,
    libc: Libc,
    module: &'static str,
    descriptor: &'static str,
}

const X86_GLIBC: Target = Target {
    compiler: "gcc",
    emulator: &[],
    machine: Machine::X86_64,
    libc: Libc::Glibc,
    module: "-mtls-dialect=gnu",
    descriptor: "-mtls-dialect=gnu2",
};
const X86_MUSL: Target = Target { compiler: "musl-gcc", libc: Libc::Musl, ..X86_GLIBC };
const ARM_GLIBC: Target = Target {
    compiler: "aarch64-linux-gnu-gcc",
    emulator: &["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"],
    machine: Machine::Aarch64,
    libc: Libc::Glibc,
    module: "-mtls-dialect=trad",
    descriptor: "-mtls-dialect=desc",
};

#[cfg(target_arch = "x86_64")]
#[test]
fn glibc() {
    X86_GLIBC.check(None, OWN, Static);
    X86_GLIBC.check(None, STATIC, Static);
    X86_GLIBC.check_linked();
    X86_GLIBC.check(Some(DISTANCE), LOADS, Static);
    X86_GLIBC.check(Some(X86_GLIBC.module), LOADS, Dynamic);
    // The loader may have used spare static TLS.
    X86_GLIBC.check(Some(X86_GLIBC.descriptor), LOADS, Static);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn musl() {
    X86_MUSL.check(None, OWN, Static);
    X86_MUSL.check_linked();
    // musl refuses initial-exec in a library loaded later.
    X86_MUSL.check(Some(X86_MUSL.module), LOADS, Dynamic);
    X86_MUSL.check(Some(X86_MUSL.descriptor), LOADS, Dynamic);
}

#[test]
fn glibc_on_aarch64() {
    ARM_GLIBC.check(None, OWN, Static);
    ARM_GLIBC.check(None, STATIC, Static);
    ARM_GLIBC.check_linked();
    ARM_GLIBC.check(Some(ARM_GLIBC.module), LOADS, Dynamic);
    ARM_GLIBC.check(Some(ARM_GLIBC.descriptor), LOADS, Dynamic);
}

impl Target {
    fn check_linked(&self) {
        self.check(Some(DISTANCE), LINKED, Static);
        self.check(Some(self.module), LINKED, Dynamic);
        self.check(Some(self.descriptor), LINKED, Static);
    }

    fn check(&self, library: Option<&str>, program: &str, access: Access) {
        let what = format!("{}: {} {program}", self.compiler, library.unwrap_or("alone:"));
        let programs = [self.compiler].into_iter().chain(self.emulator.first().copied());
        if let Some(missing) = programs.into_iter().find(|program| !is_installed(program)) {
            return println!("skipped: {missing} is not installed");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tls_slot.c"), SOURCE).unwrap();
        if let Some(how) = library {
            self.compile(folder.path(), &format!("{how} {LIBRARY}"));
        }
        self.compile(folder.path(), program);
        let running = self.run(folder.path());
        let memory = ProcessMemory(running.child.id());
        let slot = self.find(&running).unwrap_or_else(|| panic!("{what}: no slot was found"));
        let found = match slot.location {
            TlsLocation::Static { .. } => Static,
            TlsLocation::Dynamic { .. } => Dynamic,
        };
        assert_eq!(found, access, "{what}: {slot:?}");
        for (thread, address) in &running.threads {
            assert_eq!(slot.location.address(&memory, *thread), Some(*address), "{what}: {slot:?}");
        }
        assert_eq!(running.threads.len(), 2, "{what}");
        // glibc allocates a thread's block of a later library at its first access.
        let idle = slot.location.address(&memory, running.idle);
        let late = program == LOADS && access == Dynamic && self.libc == Libc::Glibc;
        assert_eq!(idle.is_none(), late, "{what}: {idle:?}");
    }

    fn compile(&self, folder: &Path, words: &str) {
        let words = ALWAYS.split(' ').chain(words.split(' '));
        let output = Command::new(self.compiler).current_dir(folder).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&self, folder: &Path) -> Running {
        let program = folder.join("program").display().to_string();
        let library = folder.join("libslot.so").display().to_string();
        let words = self.emulator.iter().map(|word| (*word).to_owned()).chain([program, library]);
        let words: Vec<String> = words.collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Running::new(command.spawn().unwrap())
    }

    /// Finds the slot like [`crate::scan`], which knows the executed program; here the kernel
    /// may know the emulator.
    fn find(&self, running: &Running) -> Option<ThreadContextSlot> {
        let memory = ProcessMemory(running.child.id());
        let file = File::open(format!("/proc/{}/maps", running.child.id())).unwrap();
        let begins = BufReader::new(file)
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
        let images = begins.filter_map(|at| Image::read(&memory, at));
        images.filter(|image| image.machine == self.machine).find_map(|image| {
            match lookup_in(&memory, &image, image.contains(running.program), || self.libc) {
                SlotLookup::At(slot) => Some(slot),
                other => {
                    assert_eq!(other, SlotLookup::NotFound);
                    None
                }
            }
        })
    }
}

/// A running program that has printed its threads' addresses.
struct Running {
    child: Child,
    program: u64,
    threads: Vec<(u64, u64)>,
    idle: u64,
}

impl Running {
    fn new(mut child: Child) -> Running {
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut running = Running { child, program: 0, threads: Vec::new(), idle: 0 };
        for line in output.lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| u64::from_str_radix(words[at].trim_start_matches("0x"), 16).unwrap();
            match words[0] {
                "program" => running.program = number(1),
                "thread" => running.threads.push((number(1), number(2))),
                "idle" => running.idle = number(1),
                "done" => return running,
                other => panic!("{other}"),
            }
        }
        panic!("it did not start: {:?}", running.child.wait());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|folder| Path::new(folder).join(program).is_file())
}
