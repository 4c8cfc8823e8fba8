//! `screenshots`: the pictures of Zipkin in `docs/`, made anew of a real run: SQLite on ext4 on a loop device, in a real
//! Zipkin, seen by a real browser.
//!
//! *Out*: `docs/zipkin-trace.png`, one durable write through all layers with the journal commit that it waited for, and
//! `docs/zipkin-dependencies.png`, who asks whom; `docs/zipkin-nbd.png`, one request of an NBD server's;
//! and `docs/zipkin-application.png`, one request of a service that traces itself. Times differ from run to run, so nothing compares the pictures: a person
//! looks at them, after each change of what spans say.

mod base64;
mod browser;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::demo::{self, Disk, Workload, application, as_machine, look, nbd};
use crate::servers::Zipkin;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::workspace::Workspace;

use browser::Browser;

/// Whose name the pictures show, and no machine's: paths in it are tags.
const FOLDER: &str = "/var/tmp/blkkin";
/// What fits into the picture of a trace.
const SPANS_MAX: usize = 24;
const TRACE_SIZE: (u32, u32) = (1400, 1000);
const DAEMON_SIZE: (u32, u32) = (1400, 760);
const APPLICATION_SIZE: (u32, u32) = (1400, 1060);
const GRAPH_SIZE: (u32, u32) = (1100, 560);
/// The graph's nodes move to their places meanwhile.
const STILL: Duration = Duration::from_millis(2500);
/// A PNG that is larger shows more than a reader can read.
const BYTES_MAX: usize = 200_000;

/// Makes those whose name contains `only`; all of them without it. `blkkin` is the program to use, where it is not to be built.
pub(crate) fn run(workspace: &Workspace, blkkin: Option<PathBuf>, only: Option<&str>) -> Result<ExitCode> {
    if !shell::is_root() {
        bail!("this traces, and so needs root: run it as root");
    }
    setup::run(workspace, &[Purpose::Build, Purpose::Demo, Purpose::Daemons, Purpose::Screenshots])?;
    let blkkin = blkkin.map_or_else(|| demo::build(workspace, demo::EVERYTHING), Ok)?;
    let folder = PathBuf::from(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let docs = workspace.root().join("docs");
    let wanted = |names: &[&str]| only.is_none_or(|only| names.iter().any(|name| name.contains(only)));
    // Each with a Zipkin that has nothing else.
    let zipkin = || {
        let mut zipkin = Zipkin::start(workspace, &folder)?;
        zipkin.wait().map(|()| zipkin)
    };
    if wanted(&["zipkin-trace.png", "zipkin-dependencies.png"]) {
        sqlite(&folder, &blkkin, &zipkin()?, &docs)?;
    }
    if wanted(&["zipkin-nbd.png"]) {
        let zipkin = zipkin()?;
        nbd::play(&folder, &blkkin, &zipkin, program(&folder, &blkkin)?)?;
        let page = look::trace_page(&zipkin, &nbd::a_whole_request(&zipkin)?);
        picture_of_a_trace(&folder, DAEMON_SIZE, &docs.join("zipkin-nbd.png"), &page)?;
    }
    if wanted(&["zipkin-application.png"]) {
        let zipkin = zipkin()?;
        application::play(&folder, &blkkin, &zipkin, program(&folder, &blkkin)?)?;
        let page = look::trace_page(&zipkin, &application::a_whole_order(&zipkin)?);
        picture_of_a_trace(&folder, APPLICATION_SIZE, &docs.join("zipkin-application.png"), &page)?;
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn sqlite(folder: &Path, blkkin: &Path, zipkin: &Zipkin, docs: &Path) -> Result<()> {
    trace(folder, blkkin, zipkin)?;
    let page = look::trace_page(zipkin, &look::a_durable_write(zipkin, SPANS_MAX)?);
    picture_of_a_trace(folder, TRACE_SIZE, &docs.join("zipkin-trace.png"), &page)?;
    picture(folder, GRAPH_SIZE, &docs.join("zipkin-dependencies.png"), |browser| {
        browser.go(&look::dependency_page(zipkin))?;
        browser.wait_until("document.querySelector('canvas')")
    })
}

fn picture_of_a_trace(folder: &Path, size: (u32, u32), path: &Path, page: &str) -> Result<()> {
    picture(folder, size, path, |browser| {
        browser.go(page)?;
        browser.wait_until("document.body.innerText.includes('Total Spans')")?;
        // What the panel says first is when it began and ended: the tags say more.
        browser.run(CLOSE_ANNOTATIONS).map(drop)
    })
}

/// Clicks on the head of the list of annotations.
const CLOSE_ANNOTATIONS: &str = "\
    const heads = [...document.querySelectorAll('*')].filter(e => e.children.length === 0 && e.textContent === 'Annotation');\
    const head = heads.map(e => e.parentElement.querySelector('button') ?? e.parentElement.parentElement.querySelector('button')).find(Boolean);\
    head?.click(); return Boolean(head)";

/// `blkkin run` on a machine whose name is nobody's.
fn program(folder: &Path, blkkin: &Path) -> Result<Command> {
    let mut command = as_machine("demo", folder)?;
    let blkkin = blkkin.canonicalize().with_context(|| format!("no {}", blkkin.display()))?;
    command.arg(blkkin).args(["run", "--no-report"]);
    Ok(command)
}

/// SQLite at work, spans to Zipkin.
fn trace(folder: &Path, blkkin: &Path, zipkin: &Zipkin) -> Result<()> {
    let disk = Disk::make(folder)?;
    let workload = Workload::prepare(folder, disk.mount_point())?;
    let mut command = program(folder, blkkin)?;
    command.arg("--to").arg(format!("zipkin={}", zipkin.url()));
    command.arg("--").arg("sh").arg(workload.script());
    shell::run_quietly(command.env_remove("LD_LIBRARY_PATH")).context("the traced run failed")?;
    disk.remove()
}

fn picture(
    folder: &Path,
    size: (u32, u32),
    path: &Path,
    show: impl Fn(&Browser) -> Result<()>,
) -> Result<()> {
    let browser = Browser::open(folder, size)?;
    show(&browser).with_context(|| format!("no {}", path.display()))?;
    std::thread::sleep(STILL);
    let png = browser.picture()?;
    if png.len() > BYTES_MAX {
        bail!("{} would have {} bytes, more than {BYTES_MAX}", path.display(), png.len());
    }
    std::fs::write(path, &png).with_context(|| format!("cannot write {}", path.display()))?;
    println!("screenshots: {} ({} bytes)", path.display(), png.len());
    Ok(())
}
