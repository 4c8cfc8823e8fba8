//! `setup`: prepares this machine for builds, and with `--tests` or `--demo` for those.
//!
//! It checks first, prints what is missing and why, then installs it. If nothing is missing it
//! prints one line. It checks the programs themselves, never a record of an earlier run. Only
//! distribution packages are installed system-wide, and only these need root.

mod apt;
mod compiler;
mod debian;
mod java;
mod kafka;
mod kernel;
mod linker;
mod maven;
mod otelcol;
mod prometheus;
mod schemas;
mod tracers;
mod zipkin;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::timing::Timings;
use crate::toolchain::{self, Toolchain};
use crate::workspace::Workspace;

pub(crate) use crate::packages::Purpose;
pub(crate) use java::java_jars;
pub(crate) use kafka::broker_jars;
pub(crate) use kernel::Kernel;
pub(crate) use otelcol::collector;
pub(crate) use prometheus::prometheus;
pub(crate) use schemas::schemas;
pub(crate) use tracers::tracers;
pub(crate) use zipkin::server_jar;

/// Installs what is missing for `purposes`.
pub(crate) fn run(workspace: &Workspace, purposes: &[Purpose]) -> Result<()> {
    run_during(workspace, purposes, || Ok(()))
}

/// Installs what is missing for `purposes`, and meanwhile does `work`, which needs packages and tool chain alone: what is
/// fetched is fetched next to it. Returns after both.
pub(crate) fn run_during<T>(
    workspace: &Workspace,
    purposes: &[Purpose],
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if Plan::of(workspace, purposes).is_empty() {
        println!("setup: nothing to do");
        return work();
    }
    let alone = lock(workspace)?;
    // Another set-up may have finished while this one waited for the lock.
    let plan = Plan::of(workspace, purposes);
    plan.print();
    let mut timings = Timings::default();
    plan.install(workspace, &mut timings)?;
    std::thread::scope(|scope| {
        let fetched = scope.spawn(move || {
            let fetched = plan.fetch(workspace, &mut timings);
            drop(alone);
            match &fetched {
                Ok(()) => println!("setup: done ({})", timings.summary()),
                // At once: the work may go on for long.
                Err(error) => eprintln!("setup: {error:#}"),
            }
            fetched
        });
        let done = work();
        fetched.join().unwrap_or_else(|_| bail!("the set-up panicked")).and(done)
    })
}

/// Compiler and the LLVM that it uses.
struct Compiler {
    rustc: PathBuf,
    /// Shared library itself, not a link to it.
    llvm: PathBuf,
    /// Folder of the libraries that the compiler needs, if they are not in a standard folder.
    library_path: Option<PathBuf>,
}

/// Files that are fetched below `target/toolchain`.
struct Download {
    name: &'static str,
    /// Line of the plan.
    plan: &'static str,
    purposes: &'static [Purpose],
    /// Returns the path to fetch to, if it is missing and can be made here.
    missing: fn(&Workspace) -> Option<PathBuf>,
    fetch: fn(&Path) -> Result<()>,
    /// True if a failure ends the set-up. Otherwise its tests are skipped and counted as skipped.
    required: bool,
}

const DOWNLOADS: &[Download] = &[
    Download {
        name: "Zipkin server",
        plan: zipkin::PLAN,
        purposes: &[Purpose::Tests, Purpose::Cluster, Purpose::Daemons, Purpose::Screenshots],
        missing: |workspace| absent(server_jar(workspace)),
        fetch: zipkin::fetch,
        required: true,
    },
    Download {
        name: "Kafka broker",
        plan: kafka::PLAN,
        purposes: &[Purpose::Tests, Purpose::Cluster],
        missing: |workspace| absent(broker_jars(workspace)),
        fetch: kafka::fetch,
        required: true,
    },
    Download {
        name: "Java jars",
        plan: java::PLAN,
        purposes: &[Purpose::Tests],
        missing: |workspace| absent(java_jars(workspace)),
        fetch: java::fetch,
        required: true,
    },
    Download {
        name: "OpenTelemetry Collector",
        plan: otelcol::PLAN,
        purposes: &[Purpose::Tests],
        missing: otelcol::missing,
        fetch: otelcol::fetch,
        required: false,
    },
    Download {
        name: "Prometheus",
        plan: prometheus::PLAN,
        purposes: &[Purpose::Tests],
        missing: prometheus::missing,
        fetch: prometheus::fetch,
        required: false,
    },
    Download {
        name: "schemas",
        plan: schemas::PLAN,
        purposes: &[Purpose::Tests],
        missing: |workspace| absent(schemas(workspace)),
        fetch: schemas::fetch,
        required: false,
    },
    Download {
        name: "tracing libraries",
        plan: tracers::PLAN,
        purposes: &[Purpose::Tests],
        missing: |workspace| absent(tracers(workspace)),
        fetch: tracers::fetch,
        required: false,
    },
];

fn absent(path: PathBuf) -> Option<PathBuf> {
    (!path.exists()).then_some(path)
}

/// Missing components.
struct Plan {
    packages: Vec<&'static packages::Package>,
    /// Reason why the recorded tool chain cannot be used; `None` if it works or is not needed.
    toolchain: Option<anyhow::Error>,
    downloads: Vec<(&'static Download, PathBuf)>,
    kernels: Vec<&'static Kernel>,
}

impl Plan {
    fn of(workspace: &Workspace, purposes: &[Purpose]) -> Self {
        let ready_object = std::env::var_os(toolchain::READY_OBJECT_VARIABLE).is_some();
        let wanted = DOWNLOADS.iter().filter(|one| one.purposes.iter().any(|one| purposes.contains(one)));
        Self {
            packages: packages::missing(purposes),
            toolchain: if ready_object { None } else { Toolchain::recorded(workspace).err() },
            downloads: wanted.filter_map(|one| Some((one, (one.missing)(workspace)?))).collect(),
            kernels: if purposes.contains(&Purpose::Guests) {
                kernel::missing(workspace)
            } else {
                Vec::new()
            },
        }
    }

    fn is_empty(&self) -> bool {
        self.packages.is_empty()
            && self.toolchain.is_none()
            && self.downloads.is_empty()
            && self.kernels.is_empty()
    }

    fn print(&self) {
        println!("setup: installing what is missing:");
        for package in &self.packages {
            println!("  {}", package.plan_line());
        }
        if let Some(why) = &self.toolchain {
            println!(
                "  an eBPF tool chain below target/toolchain (rustc with its library source, bpf-linker): compiles kprobe-ebpf ({why:#})"
            );
        }
        for (download, _) in &self.downloads {
            println!("  {}", download.plan);
        }
        for kernel in &self.kernels {
            println!("  {}", kernel.plan_line());
        }
    }

    /// Installs packages and tool chain.
    fn install(&self, workspace: &Workspace, timings: &mut Timings) -> Result<()> {
        if !self.packages.is_empty() {
            timings.time("packages", || packages::install(&self.packages))?;
        }
        if self.toolchain.is_some() {
            make_toolchain(workspace, timings)?;
        }
        Ok(())
    }

    /// Fetches files and kernels, one after the other: two runs of apt would exclude each other.
    fn fetch(self, workspace: &Workspace, timings: &mut Timings) -> Result<()> {
        for (download, path) in self.downloads {
            match timings.time(download.name, || (download.fetch)(&path)) {
                Err(error) if download.required => return Err(error),
                Err(error) => println!("  no {} for the tests: {error:#}", download.name),
                Ok(()) => {}
            }
        }
        for kernel in self.kernels {
            // Not fatal: the tests inside it are skipped and counted as skipped.
            if let Err(error) = timings.time("kernel", || kernel.fetch(workspace)) {
                println!("  no {kernel} for the tests inside it: {error:#}");
            }
        }
        Ok(())
    }
}

fn make_toolchain(workspace: &Workspace, timings: &mut Timings) -> Result<()> {
    if let Some(path) = std::env::var_os(toolchain::RECORD_VARIABLE) {
        bail!(
            "{} names {}, which is not a working tool chain: {:#}; correct it, or unset the variable to build one",
            toolchain::RECORD_VARIABLE,
            path.display(),
            Toolchain::recorded(workspace)
                .err()
                .unwrap_or_else(|| anyhow::anyhow!("it changed in the meantime"))
        );
    }
    let compiler = timings.time("compiler", || compiler::find_or_make(workspace))?;
    let toolchain = timings.time("bpf-linker", || linker::install(workspace, compiler))?;
    toolchain.check().context("the new tool chain does not work")?;
    toolchain.record(workspace)
}

/// Allows one set-up at a time in a workspace. Closing the file, also by a crash, releases the
/// lock.
fn lock(workspace: &Workspace) -> Result<File> {
    let folder = workspace.toolchain_dir();
    let path = folder.join("lock");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
