//! `setup`: prepares this machine for builds, and with `--tests` or `--demo` for those.
//!
//! It checks first, prints what is missing and why, then installs it. If nothing is missing it
//! prints one line. It checks the programs themselves, never a record of an earlier run. Only
//! distribution packages are installed system-wide, and only these need root.

mod compiler;
mod debian;
mod java;
mod kafka;
mod linker;
mod maven;
mod otelcol;
mod prometheus;
mod schemas;
mod tracers;
mod zipkin;

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::timing::Timings;
use crate::toolchain::{self, Toolchain};
use crate::vm::{self, Kernel};
use crate::workspace::Workspace;

pub(crate) use java::java_jars;
pub(crate) use kafka::broker_jars;
pub(crate) use otelcol::collector;
pub(crate) use prometheus::prometheus;
pub(crate) use schemas::schemas;
pub(crate) use tracers::tracers;
pub(crate) use zipkin::server_jar;

/// Purpose of a set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Build,
    /// Checks of all code, including the parts that need optional libraries.
    Lint,
    Demo,
    Tests,
    /// Demo with several nodes.
    Cluster,
    /// Demo with a storage daemon.
    Daemons,
    /// Screenshots in the documentation.
    Screenshots,
    /// Tests inside other kernels.
    Guests,
    /// Container image.
    Image,
    /// Load on loop devices, for benchmarks.
    Disks,
    /// Tools for comparison with blkkin, and the programs that they trace.
    Peers,
    /// Instruction counts.
    Count,
}

/// Installs what is missing for `purposes`.
pub(crate) fn run(workspace: &Workspace, purposes: &[Purpose]) -> Result<()> {
    let plan = Plan::of(workspace, purposes);
    if plan.is_empty() {
        println!("setup: nothing to do");
        return Ok(());
    }
    let _alone = lock(workspace)?;
    // Another set-up may have finished while this one waited for the lock.
    let plan = Plan::of(workspace, purposes);
    plan.print();
    let mut timings = Timings::default();
    plan.carry_out(workspace, &mut timings)?;
    println!("setup: done ({})", timings.summary());
    Ok(())
}

/// Missing components.
struct Plan {
    packages: Vec<&'static packages::Package>,
    /// Reason why the recorded tool chain cannot be used; `None` if it works or is not needed.
    toolchain: Option<anyhow::Error>,
    zipkin: Option<PathBuf>,
    kafka: Option<PathBuf>,
    java: Option<PathBuf>,
    collector: Option<PathBuf>,
    prometheus: Option<PathBuf>,
    schemas: Option<PathBuf>,
    tracers: Option<PathBuf>,
    kernels: Vec<&'static Kernel>,
}

impl Plan {
    fn of(workspace: &Workspace, purposes: &[Purpose]) -> Self {
        let ready_object = std::env::var_os(toolchain::READY_OBJECT_VARIABLE).is_some();
        let (jar, jars, java) = (server_jar(workspace), broker_jars(workspace), java_jars(workspace));
        let any = |of: &[Purpose]| of.iter().any(|purpose| purposes.contains(purpose));
        let zipkin = any(&[Purpose::Tests, Purpose::Cluster, Purpose::Daemons, Purpose::Screenshots]);
        let kafka = any(&[Purpose::Tests, Purpose::Cluster]);
        let (schemas, tracers) = (schemas(workspace), tracers(workspace));
        Self {
            packages: packages::missing(purposes),
            toolchain: if ready_object { None } else { Toolchain::recorded(workspace).err() },
            zipkin: (zipkin && !jar.is_file()).then_some(jar),
            kafka: (kafka && !jars.is_dir()).then_some(jars),
            java: (purposes.contains(&Purpose::Tests) && !java.is_dir()).then_some(java),
            collector: if purposes.contains(&Purpose::Tests) { otelcol::missing(workspace) } else { None },
            prometheus: if purposes.contains(&Purpose::Tests) {
                prometheus::missing(workspace)
            } else {
                None
            },
            schemas: (purposes.contains(&Purpose::Tests) && !schemas.is_dir()).then_some(schemas),
            tracers: (purposes.contains(&Purpose::Tests) && !tracers.is_dir()).then_some(tracers),
            kernels: if purposes.contains(&Purpose::Guests) { vm::missing(workspace) } else { Vec::new() },
        }
    }

    fn is_empty(&self) -> bool {
        self.packages.is_empty()
            && self.toolchain.is_none()
            && self.zipkin.is_none()
            && self.kafka.is_none()
            && self.java.is_none()
            && self.collector.is_none()
            && self.prometheus.is_none()
            && self.schemas.is_none()
            && self.tracers.is_none()
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
        if self.zipkin.is_some() {
            println!("  {}", zipkin::PLAN);
        }
        if self.kafka.is_some() {
            println!("  {}", kafka::PLAN);
        }
        if self.java.is_some() {
            println!("  {}", java::PLAN);
        }
        if self.collector.is_some() {
            println!("  {}", otelcol::PLAN);
        }
        if self.prometheus.is_some() {
            println!("  {}", prometheus::PLAN);
        }
        if self.schemas.is_some() {
            println!("  {}", schemas::PLAN);
        }
        if self.tracers.is_some() {
            println!("  {}", tracers::PLAN);
        }
        for kernel in &self.kernels {
            println!("  {}", kernel.plan_line());
        }
    }

    fn carry_out(self, workspace: &Workspace, timings: &mut Timings) -> Result<()> {
        if !self.packages.is_empty() {
            timings.time("packages", || packages::install(&self.packages))?;
        }
        if self.toolchain.is_some() {
            make_toolchain(workspace, timings)?;
        }
        if let Some(jar) = self.zipkin {
            timings.time("Zipkin server", || zipkin::fetch(&jar))?;
        }
        if let Some(jars) = self.kafka {
            timings.time("Kafka broker", || kafka::fetch(&jars))?;
        }
        if let Some(jars) = self.java {
            timings.time("Java jars", || java::fetch(&jars))?;
        }
        if let Some(collector) = self.collector {
            // Not fatal: its test is skipped and counted as skipped.
            if let Err(error) = timings.time("Collector", || otelcol::fetch(&collector)) {
                println!("  no OpenTelemetry Collector for the tests: {error:#}");
            }
        }
        if let Some(folder) = self.prometheus {
            // Not fatal, as above.
            if let Err(error) = timings.time("Prometheus", || prometheus::fetch(&folder)) {
                println!("  no Prometheus for the tests: {error:#}");
            }
        }
        if let Some(schemas) = self.schemas {
            // Not fatal: its test is skipped and counted as skipped.
            if let Err(error) = timings.time("schemas", || schemas::fetch(&schemas)) {
                println!("  no schemas for the tests: {error:#}");
            }
        }
        if let Some(tracers) = self.tracers {
            // Not fatal, as above.
            if let Err(error) = timings.time("tracing libraries", || tracers::fetch(&tracers)) {
                println!("  no tracing libraries for the tests: {error:#}");
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
