//! `daemon`: latency from the end of a daemon span to its trace in Zipkin, on one node.
//!
//! ```text
//! fio (nbd) → blkkin-nbd → LTTng → blkkin run --ust ─┐
//!                  └ kernel (pread64) ───────────────┴→ proxy (records the time) → Zipkin ← polled
//! ```
//!
//! Each daemon span has a system call as child, so its trace is complete only when both paths have
//! delivered: LTTng's rings, live timer and relay daemon; and the kernel's rings with their reader
//! thread. All processes run on this machine, including Zipkin, so that they share one clock; they
//! also compete for its CPUs.

mod tracker;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::broker::child::KillOnDrop;
use crate::frame::number::count;
use crate::frame::rounds::quantile;
use crate::frame::{BenchReport, Figure, Goal, Rounds};
use crate::process::{self, now_us};
use crate::zipkin::Zipkin;
use crate::{Setting, fio, nbd, proxy};
use tracker::VisibilityTracker;

/// Requests per second.
const RATE: u64 = 1_000;
const ROUNDS: u32 = 7;
const ROUND: Duration = Duration::from_secs(15);
/// Time that is not counted, in which Zipkin's JVM compiles.
const WARM_UP: Duration = Duration::from_secs(30);
/// Time for the last traces to arrive.
const SETTLE: Duration = Duration::from_secs(3);
/// Capacity of Zipkin, for twice the expected spans.
const SPANS_MAX: u32 = 800_000;
const FILE_BYTES: u64 = 64 << 20;
const SHOWN_P99_MAX_MS: f64 = 50.0;
/// Time limit for the server to listen, which requires its registration with LTTng, and for blkkin
/// to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let (rounds, round, warm_up) = match setting.extent.is_quick() {
        true => (1, Duration::from_secs(5), Duration::from_secs(5)),
        false => (ROUNDS, ROUND, WARM_UP),
    };
    let whole = warm_up + round * rounds + Duration::from_secs(1);
    let zipkin = Arc::new(Zipkin::without_pauses(SPANS_MAX).map_err(anyhow::Error::msg)?);
    let tracker = Arc::new(VisibilityTracker::default());
    let address = zipkin.url().trim_start_matches("http://").to_owned();
    let observing = Arc::clone(&tracker);
    let proxy = proxy::listen(address, move |spans| observing.note_post(spans))?;
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let mut traced = Traced::start(setting, folder.path(), &format!("zipkin=http://{proxy}"))?;
    let end = Arc::new(AtomicBool::new(false));
    let poller = tracker.poll(Arc::clone(&zipkin), Arc::clone(&end));
    let mut fio = fio::nbd(&traced.socket, 1, whole);
    fio.arg(format!("--rate_iops={RATE}")).arg(format!("--size={FILE_BYTES}")).stdout(Stdio::null());
    let mut fio = KillOnDrop(fio.spawn().context("fio is not installed")?);
    std::thread::sleep(warm_up);
    let started = now_us();
    std::thread::sleep(round * rounds);
    if !fio.0.wait()?.success() {
        bail!("fio failed");
    }
    std::thread::sleep(SETTLE);
    end.store(true, Relaxed);
    poller.join().ok().context("the thread that polls Zipkin panicked")?;
    traced.end()?;
    if let Some(error) = tracker.error() {
        bail!("{error}");
    }
    let each = round.as_micros() as u64;
    let times: Vec<_> = (0..u64::from(rounds))
        .map(|n| tracker.ended_in(started + n * each, started + (n + 1) * each))
        .collect();
    build_report(&times, round)
}

/// Running `blkkin run --ust` with the server.
struct Traced {
    blkkin: KillOnDrop,
    socket: PathBuf,
}

impl Traced {
    fn start(setting: &Setting, folder: &Path, to: &str) -> Result<Traced> {
        let (file, socket) = (folder.join("file"), folder.join("socket"));
        File::create(&file)?.set_len(FILE_BYTES)?;
        let log = setting.folder.join("daemon.blkkin");
        let mut command = Command::new(&setting.blkkin);
        command.args(["run", "--ust", "--to", to, "--"]);
        command.arg(nbd::program()?).arg(file).arg("--unix").arg(&socket);
        // Each request has a span.
        command.env("BLKKIN_UST_ROOTS", "0");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut blkkin = KillOnDrop(command.spawn().context("cannot start blkkin")?);
        let failure = format!("the server does not listen: see {}", log.display());
        process::wait_until(&mut blkkin.0, TIMEOUT, &failure, || socket.exists())?;
        Ok(Traced { blkkin, socket })
    }

    /// Stops the server; blkkin ends after it.
    fn end(&mut self) -> Result<()> {
        let pid = self.blkkin.0.id();
        for child in children(pid)? {
            let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            // SAFETY: a child of our child, which has not waited for it while it has a name.
            if name.trim_end() == "blkkin-nbd" && unsafe { libc::kill(child, libc::SIGTERM) } != 0 {
                return Err(io::Error::last_os_error()).context("cannot end the server");
            }
        }
        let started = Instant::now();
        while self.blkkin.0.try_wait()?.is_none() {
            if started.elapsed() > TIMEOUT {
                bail!("blkkin does not end behind its command");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Lists the children of all threads of a process.
fn children(pid: u32) -> Result<Vec<libc::pid_t>> {
    let mut all = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let ids = fs::read_to_string(thread?.path().join("children"))?;
        all.extend(ids.split_whitespace().filter_map(|word| word.parse::<libc::pid_t>().ok()));
    }
    Ok(all)
}

fn build_report(times: &[[Vec<f64>; 2]], round: Duration) -> Result<BenchReport> {
    let seen: [usize; 2] = [0, 1].map(|kind| times.iter().map(|round| round[kind].len()).sum());
    if times.iter().flatten().any(Vec::is_empty) {
        bail!(
            "no trace came through in one of the rounds: see daemon.blkkin next to this benchmark's results"
        );
    }
    let of = |kind: usize, part: f64| -> Rounds {
        times.iter().map(|round| quantile(&mut round[kind].clone(), part)).collect()
    };
    let shown = Figure::of("daemon's event to visible in Zipkin, p99", &of(1, 0.99), "ms");
    let figures = vec![
        shown.goal(Goal::AtMost(SHOWN_P99_MAX_MS)),
        Figure::of("daemon's event to visible in Zipkin, median", &of(1, 0.5), "ms"),
        Figure::of("daemon's event to span posted, p99", &of(0, 0.99), "ms")
            .note("by the proxy between exporter and Zipkin"),
        Figure::of("daemon's event to span posted, median", &of(0, 0.5), "ms"),
    ];
    let how = format!(
        "fio's nbd engine sends {RATE} reads of 4 KiB per second to blkkin-nbd, its file in memory, under `blkkin run --ust --to zipkin=…`; the \
         event is the end of the daemon span. All processes run on this machine, Zipkin too, with a concurrent garbage collector (-XX:+UseZGC; by \
         default it pauses for 30 to 50 ms each second under this load). {} rounds of {} s after {} s for Zipkin's JVM; {} spans \
         of the daemon were posted, and {} were visible: Zipkin was polled each ms for a trace of the newest post.",
        times.len(),
        round.as_secs(),
        WARM_UP.as_secs(),
        count(seen[0] as u64),
        count(seen[1] as u64),
    );
    Ok(BenchReport { how, figures, ..BenchReport::default() })
}
