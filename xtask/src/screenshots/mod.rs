//! `screenshots`: the pictures of Zipkin in `docs/`, from a real run: SQLite on ext4 on a loop
//! device, in a real Zipkin and a real browser, and of programs whose data the kernel wrote back.
//!
//! *Out*: `docs/zipkin-trace.png`, one durable write through all layers with the journal commit that it waited for;
//! `docs/zipkin-dependencies.png`, the dependency graph; `docs/zipkin-writeback.png`, data of two programs in one
//! bio; `docs/zipkin-nbd.png`, one request of an NBD server; `docs/zipkin-application.png`, one request of an
//! application with its own spans; `docs/zipkin-virtual-machine.png`, one call in a guest, down to the host's disk.
//! Times differ between runs, so no test compares the pictures. A person reviews them after each change of the spans.

mod browser;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::demo::{self, Disk, Workload, application, buffered, nbd, vm, with_machine_id, zipkin_pages};
use crate::dist;
use crate::servers::Zipkin;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::workspace::Workspace;

use browser::Browser;

/// Folder of the run; its paths appear as tags in the pictures, so it names no machine.
const FOLDER: &str = "/var/tmp/blkkin";
/// Maximum number of spans that fit into the screenshot of a trace.
const SPANS_MAX: usize = 24;
const TRACE_SIZE: (u32, u32) = (1400, 1000);
const WRITE_BACK_SIZE: (u32, u32) = (1400, 1260);
const DAEMON_SIZE: (u32, u32) = (1400, 760);
const APPLICATION_SIZE: (u32, u32) = (1400, 1060);
const VIRTUAL_MACHINE_SIZE: (u32, u32) = (1400, 1180);
const GRAPH_SIZE: (u32, u32) = (1100, 560);
/// Time in which the graph's nodes move to their places.
const LAYOUT_TIME: Duration = Duration::from_millis(2500);
/// Size limit of a PNG; a larger one shows more than a reader can read.
const BYTES_MAX: usize = 200_000;

/// Makes the screenshots whose name contains `only`, or all. Builds blkkin unless a program is
/// given, which for a virtual machine must be static.
pub(crate) fn run(workspace: &Workspace, given: Option<PathBuf>, only: Option<&str>) -> Result<ExitCode> {
    if !shell::is_root() {
        bail!("this task traces the kernel and needs root: run it as root");
    }
    setup::run(workspace, &[Purpose::Build, Purpose::Demo, Purpose::Daemons, Purpose::Screenshots])?;
    let blkkin = given.clone().map_or_else(|| demo::build(workspace, demo::ALL_TARGETS), Ok)?;
    let folder = PathBuf::from(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let docs = workspace.root().join("docs");
    let selected = |names: &[&str]| only.is_none_or(|only| names.iter().any(|name| name.contains(only)));
    // Every screenshot has an empty Zipkin.
    let zipkin = || {
        let mut zipkin = Zipkin::start(workspace, &folder)?;
        zipkin.wait().map(|()| zipkin)
    };
    if selected(&["zipkin-trace.png", "zipkin-dependencies.png"]) {
        sqlite(&folder, &blkkin, &zipkin()?, &docs)?;
    }
    if selected(&["zipkin-writeback.png"]) {
        let zipkin = zipkin()?;
        write_back(&folder, &blkkin, &zipkin)?;
        let page = zipkin_pages::trace_page(&zipkin, &zipkin_pages::find_written_by_two(&zipkin)?);
        screenshot_trace(&folder, WRITE_BACK_SIZE, &docs.join("zipkin-writeback.png"), &page)?;
    }
    if selected(&["zipkin-nbd.png"]) {
        let zipkin = zipkin()?;
        nbd::run_workload(&folder, &blkkin, &zipkin, program(&folder, &blkkin)?)?;
        let page = zipkin_pages::trace_page(&zipkin, &nbd::find_complete_request(&zipkin)?);
        screenshot_trace(&folder, DAEMON_SIZE, &docs.join("zipkin-nbd.png"), &page)?;
    }
    if selected(&["zipkin-application.png"]) {
        let zipkin = zipkin()?;
        application::run_workload(&folder, &blkkin, &zipkin, program(&folder, &blkkin)?)?;
        let page = zipkin_pages::trace_page(&zipkin, &application::find_complete_order(&zipkin)?);
        screenshot_trace(&folder, APPLICATION_SIZE, &docs.join("zipkin-application.png"), &page)?;
    }
    if selected(&["zipkin-virtual-machine.png"]) {
        setup::run(workspace, demo::VIRTUAL_MACHINES)?;
        let zipkin = vm::trace_guests(
            workspace,
            &given.map_or_else(|| dist::static_release(workspace), Ok)?,
            &folder,
        )?
        .zipkin;
        let page = zipkin_pages::trace_page(&zipkin, &vm::find_durable_call(&zipkin)?);
        screenshot_trace(&folder, VIRTUAL_MACHINE_SIZE, &docs.join("zipkin-virtual-machine.png"), &page)?;
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn sqlite(folder: &Path, blkkin: &Path, zipkin: &Zipkin, docs: &Path) -> Result<()> {
    trace(folder, blkkin, zipkin)?;
    let page = zipkin_pages::trace_page(zipkin, &zipkin_pages::find_durable_write(zipkin, SPANS_MAX)?);
    screenshot_trace(folder, TRACE_SIZE, &docs.join("zipkin-trace.png"), &page)?;
    screenshot(folder, GRAPH_SIZE, &docs.join("zipkin-dependencies.png"), |browser| {
        browser.go(&zipkin_pages::dependency_page(zipkin))?;
        browser.wait_until("document.querySelector('canvas')")
    })
}

/// Traces two programs that write to the same file without a sync, and exports the spans to Zipkin.
fn write_back(folder: &Path, blkkin: &Path, zipkin: &Zipkin) -> Result<()> {
    const WRITERS: &str = "dd if=/dev/zero bs=32k count=2 of=\"$1\" status=none; \
                           head -c 32768 /dev/urandom | tee -a \"$1\" >/dev/null";
    let disk = Disk::make(folder)?;
    let file = disk.mount_point().join("data").display().to_string();
    let mut run = program(folder, blkkin)?;
    run.arg("--to").arg(format!("zipkin={}", zipkin.url()));
    buffered::trace(&mut run, &["sh", "-c", WRITERS, "sh", &file], disk.mount_point())?;
    disk.remove()
}

fn screenshot_trace(folder: &Path, size: (u32, u32), path: &Path, page: &str) -> Result<()> {
    screenshot(folder, size, path, |browser| {
        browser.go(page)?;
        browser.wait_until("document.body.innerText.includes('Total Spans')")?;
        // The panel opens with annotations (begin and end); the tags are more informative.
        browser.run(CLOSE_ANNOTATIONS).map(drop)
    })
}

/// Script that closes the list of annotations.
const CLOSE_ANNOTATIONS: &str = "\
    const heads = [...document.querySelectorAll('*')].filter(e => e.children.length === 0 && e.textContent === 'Annotation');\
    const head = heads.map(e => e.parentElement.querySelector('button') ?? e.parentElement.parentElement.querySelector('button')).find(Boolean);\
    head?.click(); return Boolean(head)";

/// Prepares `blkkin run` with a machine id that belongs to no machine.
fn program(folder: &Path, blkkin: &Path) -> Result<Command> {
    let mut command = with_machine_id("demo", folder)?;
    let blkkin = blkkin.canonicalize().with_context(|| format!("no {}", blkkin.display()))?;
    command.arg(blkkin).args(["run", "--no-report"]);
    Ok(command)
}

/// Traces SQLite and exports the spans to Zipkin.
fn trace(folder: &Path, blkkin: &Path, zipkin: &Zipkin) -> Result<()> {
    let disk = Disk::make(folder)?;
    let workload = Workload::prepare(folder, disk.mount_point())?;
    let mut command = program(folder, blkkin)?;
    command.arg("--to").arg(format!("zipkin={}", zipkin.url()));
    command.arg("--").arg("sh").arg(workload.script());
    shell::run_quietly(command.env_remove("LD_LIBRARY_PATH")).context("the traced run failed")?;
    disk.remove()
}

fn screenshot(
    folder: &Path,
    size: (u32, u32),
    path: &Path,
    show: impl Fn(&Browser) -> Result<()>,
) -> Result<()> {
    let browser = Browser::open(folder, size)?;
    show(&browser).with_context(|| format!("no {}", path.display()))?;
    std::thread::sleep(LAYOUT_TIME);
    let png = browser.screenshot()?;
    if png.len() > BYTES_MAX {
        bail!("{} would have {} bytes, more than {BYTES_MAX}", path.display(), png.len());
    }
    std::fs::write(path, &png).with_context(|| format!("cannot write {}", path.display()))?;
    println!("screenshots: {} ({} bytes)", path.display(), png.len());
    Ok(())
}
