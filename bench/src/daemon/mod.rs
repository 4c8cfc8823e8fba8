//! `daemon`: from the end of a daemon's operation to where Zipkin shows its trace, on one node.
//!
//! ```text
//! fio (nbd) → blkkin-nbd → LTTng → blkkin run --ust ─┐
//!                  └ kernel (pread64) ───────────────┴→ between (notes what goes by) → Zipkin ← asked all the time
//! ```
//!
//! Each operation has a call below it, so its trace is whole only when both ways have been gone: LTTng's rings, its live timer and relay;
//! the kernel's rings and the thread that drains them. All runs on this one machine, Zipkin too, so that all clocks are one; and
//! takes CPUs from each other.

mod posts;
mod watch;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::frame::number::count;
use crate::frame::rounds::quantile;
use crate::frame::{Figure, Found, Goal, Rounds};
use crate::process::{Running, now_us};
use crate::zipkin::Zipkin;
use crate::{Setting, between, nbd};
use watch::Watch;

/// Operations a second.
const RATE: u64 = 1_000;
const ROUNDS: u32 = 7;
const ROUND: Duration = Duration::from_secs(15);
/// Not counted: Zipkin's JVM compiles.
const WARM_UP: Duration = Duration::from_secs(30);
/// For the last traces to come.
const LATE: Duration = Duration::from_secs(3);
/// Room in Zipkin, for twice of what comes.
const SPANS_MAX: u32 = 800_000;
const FILE_BYTES: u64 = 64 << 20;
const SHOWN_P99_MAX_MS: f64 = 50.0;
/// For the server to listen, which it does once LTTng knows it; and for blkkin to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let (rounds, round, warm_up) = match setting.extent.is_quick() {
        true => (1, Duration::from_secs(5), Duration::from_secs(5)),
        false => (ROUNDS, ROUND, WARM_UP),
    };
    let whole = warm_up + round * rounds + Duration::from_secs(1);
    let zipkin = Arc::new(Zipkin::without_pauses(SPANS_MAX).map_err(anyhow::Error::msg)?);
    let watch = Arc::new(Watch::default());
    let address = zipkin.url().trim_start_matches("http://").to_owned();
    let seeing = Arc::clone(&watch);
    let between = between::listen(address, move || seeing.see())?;
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let mut traced = Traced::start(setting, folder.path(), &format!("zipkin=http://{between}"))?;
    let end = Arc::new(AtomicBool::new(false));
    let asking = watch.ask(Arc::clone(&zipkin), Arc::clone(&end));
    let mut fio = Running(fio(&traced.socket, whole).spawn().context("fio is not installed")?);
    std::thread::sleep(warm_up);
    let begun = now_us();
    std::thread::sleep(round * rounds);
    if !fio.0.wait()?.success() {
        bail!("fio failed");
    }
    std::thread::sleep(LATE);
    end.store(true, Relaxed);
    asking.join().ok().context("who asks Zipkin panicked")?;
    traced.end()?;
    if let Some(trouble) = watch.trouble() {
        bail!("{trouble}");
    }
    let each = round.as_micros() as u64;
    let times: Vec<_> =
        (0..u64::from(rounds)).map(|n| watch.ended_in(begun + n * each, begun + (n + 1) * each)).collect();
    found(&times, round)
}

/// `blkkin run --ust` around the server.
struct Traced {
    blkkin: Running,
    socket: PathBuf,
}

impl Traced {
    fn start(setting: &Setting, folder: &Path, to: &str) -> Result<Traced> {
        let (file, socket) = (folder.join("file"), folder.join("socket"));
        File::create(&file)?.set_len(FILE_BYTES)?;
        let said = setting.folder.join("daemon.blkkin");
        let mut command = Command::new(&setting.blkkin);
        command.args(["run", "--ust", "--to", to, "--"]);
        command.arg(nbd::program()?).arg(file).arg("--unix").arg(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
        let mut blkkin = Running(command.spawn().context("cannot start blkkin")?);
        let begun = Instant::now();
        while !socket.exists() {
            if blkkin.0.try_wait()?.is_some() || begun.elapsed() > PATIENCE {
                bail!("the server does not listen: see {}", said.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Traced { blkkin, socket })
    }

    /// Ends the server; blkkin ends behind it.
    fn end(&mut self) -> Result<()> {
        let pid = self.blkkin.0.id();
        for child in children(pid)? {
            let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            // SAFETY: a child of our child, which has not waited for it while it has a name.
            if name.trim_end() == "blkkin-nbd" && unsafe { libc::kill(child, libc::SIGTERM) } != 0 {
                return Err(io::Error::last_os_error()).context("cannot end the server");
            }
        }
        let begun = Instant::now();
        while self.blkkin.0.try_wait()?.is_none() {
            if begun.elapsed() > PATIENCE {
                bail!("blkkin does not end behind its command");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Of all its threads.
fn children(pid: u32) -> Result<Vec<libc::pid_t>> {
    let mut all = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let said = fs::read_to_string(thread?.path().join("children"))?;
        all.extend(said.split_whitespace().filter_map(|word| word.parse::<libc::pid_t>().ok()));
    }
    Ok(all)
}

fn fio(socket: &Path, length: Duration) -> Command {
    let mut fio = Command::new("fio");
    fio.args(["--name=x", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=1", "--thread"]);
    fio.args(["--time_based", "--norandommap"]).arg(format!("--rate_iops={RATE}"));
    fio.arg(format!("--runtime={}", length.as_secs())).arg(format!("--size={FILE_BYTES}"));
    fio.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
    fio.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    fio
}

fn found(times: &[[Vec<f64>; 2]], round: Duration) -> Result<Found> {
    let seen: [usize; 2] = [0, 1].map(|what| times.iter().map(|round| round[what].len()).sum());
    if times.iter().flatten().any(Vec::is_empty) {
        bail!("no trace came through in one of the rounds: see what blkkin said beside this bench's results");
    }
    let of = |what: usize, part: f64| -> Rounds {
        times.iter().map(|round| quantile(&mut round[what].clone(), part)).collect()
    };
    let shown = Figure::of("daemon's event to visible in Zipkin, p99", &of(1, 0.99), "ms");
    let figures = vec![
        shown.goal(Goal::AtMost(SHOWN_P99_MAX_MS)),
        Figure::of("daemon's event to visible in Zipkin, median", &of(1, 0.5), "ms"),
        Figure::of("daemon's event to span handed over, p99", &of(0, 0.99), "ms")
            .note("its post has gone by, on its way to Zipkin"),
        Figure::of("daemon's event to span handed over, median", &of(0, 0.5), "ms"),
    ];
    let how = format!(
        "fio's nbd engine asks blkkin-nbd for {RATE} reads of 4 KiB a second, its file in memory, under `blkkin run --ust --to zipkin=…`; the \
         event is the operation's end. All is on this one machine, Zipkin too, whose garbage is collected without stopping it (-XX:+UseZGC; by \
         its default it stops for 30 to 50 ms each second while it is filled). {} rounds of {} s after {} s for Zipkin's JVM; {} spans \
         of operations went by, and {} were shown: Zipkin was asked each ms for one of the newest post.",
        times.len(),
        round.as_secs(),
        WARM_UP.as_secs(),
        count(seen[0] as u64),
        count(seen[1] as u64),
    );
    Ok(Found { how, figures, ..Found::default() })
}
