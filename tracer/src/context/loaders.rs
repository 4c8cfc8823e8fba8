//! Where real loaders put a variable: programs of glibc and of musl, of this machine and of aarch64 (emulated by qemu-user), say where their
//! threads have it, and what is found in their memory must be the same.
//!
//! The program is `loaders/place.c`. Each is held to it with the variable in itself, in a library that it is linked to and in one that it loads;
//! reached by distance, module and descriptor. What an emulated program has mapped is mapped in the emulator, at the same addresses.
//!
//! *Not here*: musl on aarch64, of which no compiler is packaged: by hand in [`super::tests`].

#![allow(clippy::print_stdout, reason = "a test that cannot run says so")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use blkkin_probe_abi::context::{PLACE_DYNAMIC, PLACE_STATIC, Place};

use super::elf::{Image, Machine};
use super::memory::{Memory, ProcessMemory};
use super::process::{Publishes, of};
use super::tls::Libc;

const SOURCE: &str = include_str!("loaders/place.c");
const ALWAYS: &str = "-O1 -w -pthread";
const LIBRARY: &str = "-DLIBRARY -fPIC -shared place.c -o libslot.so";
const OWN: &str = "-DOWN -fPIE -rdynamic place.c -o program -ldl";
const STATIC: &str =
    "-DOWN -fPIE -static-pie place.c -o program -Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
const LINKED: &str = "-DLINKED place.c -o program -L. -lslot -Wl,-rpath,$ORIGIN -ldl";
const LOADS: &str = "place.c -o program -ldl";
const DISTANCE: &str = "-ftls-model=initial-exec";

/// Who compiles, who runs, and the two ways that a library's own code is told by module and by descriptor.
struct Target {
    compiler: &'static str,
    emulator: &'static [&'static str],
    machine: Machine,
    libc: Libc,
    module: &'static str,
    descriptor: &'static str,
}

const HERE: Target = Target {
    compiler: "gcc",
    emulator: &[],
    machine: Machine::X86_64,
    libc: Libc::Glibc,
    module: "-mtls-dialect=gnu",
    descriptor: "-mtls-dialect=gnu2",
};
const MUSL: Target = Target { compiler: "musl-gcc", libc: Libc::Musl, ..HERE };
const ARM: Target = Target {
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
    HERE.check(None, OWN, PLACE_STATIC);
    HERE.check(None, STATIC, PLACE_STATIC);
    HERE.check_linked();
    HERE.check(Some(DISTANCE), LOADS, PLACE_STATIC);
    HERE.check(Some(HERE.module), LOADS, PLACE_DYNAMIC);
    // The loader may have had room beside the program's own.
    HERE.check(Some(HERE.descriptor), LOADS, PLACE_STATIC);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn musl() {
    MUSL.check(None, OWN, PLACE_STATIC);
    MUSL.check_linked();
    // A library that comes later and wants a distance is refused.
    MUSL.check(Some(MUSL.module), LOADS, PLACE_DYNAMIC);
    MUSL.check(Some(MUSL.descriptor), LOADS, PLACE_DYNAMIC);
}

#[test]
fn glibc_on_aarch64() {
    ARM.check(None, OWN, PLACE_STATIC);
    ARM.check(None, STATIC, PLACE_STATIC);
    ARM.check_linked();
    ARM.check(Some(ARM.module), LOADS, PLACE_DYNAMIC);
    ARM.check(Some(ARM.descriptor), LOADS, PLACE_DYNAMIC);
}

impl Target {
    fn check_linked(&self) {
        self.check(Some(DISTANCE), LINKED, PLACE_STATIC);
        self.check(Some(self.module), LINKED, PLACE_DYNAMIC);
        self.check(Some(self.descriptor), LINKED, PLACE_STATIC);
    }

    fn check(&self, library: Option<&str>, program: &str, kind: u32) {
        let what = format!("{}: {} {program}", self.compiler, library.unwrap_or("alone:"));
        let programs = [self.compiler].into_iter().chain(self.emulator.first().copied());
        if let Some(missing) = programs.into_iter().find(|program| !is_installed(program)) {
            return println!("skipped: {missing} is not installed");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("place.c"), SOURCE).unwrap();
        if let Some(how) = library {
            self.compile(folder.path(), &format!("{how} {LIBRARY}"));
        }
        self.compile(folder.path(), program);
        let running = self.run(folder.path());
        let memory = ProcessMemory(running.child.id());
        let place = self.find(&running).unwrap_or_else(|| panic!("{what}: nothing is found"));
        assert_eq!(place.kind, kind, "{what}: {place:?}");
        for (thread, slot) in &running.threads {
            assert_eq!(slot_of(&memory, &place, *thread), Some(*slot), "{what}: {place:?}");
        }
        assert_eq!(running.threads.len(), 2, "{what}");
        // Of a library that came later glibc gives a thread its block when it first asks.
        let silent = slot_of(&memory, &place, running.silent);
        let late = program == LOADS && kind == PLACE_DYNAMIC && self.libc == Libc::Glibc;
        assert_eq!(silent.is_none(), late, "{what}: {silent:?}");
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

    /// As [`super::process::look`] does, which knows whose program is executed: here that may be the emulator.
    fn find(&self, running: &Running) -> Option<Place> {
        let memory = ProcessMemory(running.child.id());
        let file = File::open(format!("/proc/{}/maps", running.child.id())).unwrap();
        let begins = BufReader::new(file)
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
        let images = begins.filter_map(|at| Image::read(&memory, at));
        images.filter(|image| image.machine == self.machine).find_map(|image| {
            match of(&memory, &image, image.holds(running.program), || self.libc) {
                Publishes::At(place) => Some(place),
                other => {
                    assert_eq!(other, Publishes::Nothing);
                    None
                }
            }
        })
    }
}

/// What the kernel side does at a call (`kprobe-ebpf/src/context.rs`).
fn slot_of(memory: &impl Memory, place: &Place, thread: u64) -> Option<u64> {
    if place.kind == PLACE_STATIC {
        return Some(thread.wrapping_add(place.offset));
    }
    let vector = memory.word(thread.wrapping_add(place.vector_at))?;
    let length = memory.word(vector.wrapping_add(place.length_at))?;
    let block = memory.word(vector.wrapping_add(place.module * u64::from(place.stride)))?;
    let is_there = place.module <= length && block != 0 && block != u64::MAX;
    is_there.then(|| block.wrapping_add(place.offset))
}

/// A program that has said where its threads are, and stays.
struct Running {
    child: Child,
    program: u64,
    threads: Vec<(u64, u64)>,
    silent: u64,
}

impl Running {
    fn new(mut child: Child) -> Running {
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut running = Running { child, program: 0, threads: Vec::new(), silent: 0 };
        for line in said.lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| u64::from_str_radix(words[at].trim_start_matches("0x"), 16).unwrap();
            match words[0] {
                "program" => running.program = number(1),
                "thread" => running.threads.push((number(1), number(2))),
                "silent" => running.silent = number(1),
                "done" => return running,
                other => panic!("{other}"),
            }
        }
        panic!("it does not begin");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|folder| Path::new(folder).join(program).is_file())
}
