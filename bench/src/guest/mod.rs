//! `guest`: operations per second that a guest loses to its agent.
//!
//! A guest that QEMU emulates without KVM writes 4 KiB at a time past its page cache, in turns without the agent and
//! with it. The host's end of the port acknowledges each record at once, as an agent does whose cluster answers at
//! once. The host is not traced.
//!
//! *Emulated*: a program of the kernel side is machine code of the guest, which QEMU translates; so is all else in the
//! guest. The ratio is of such a guest alone.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use blkkin_guest_port::Receiver;

use crate::Setting;
use crate::frame::{BenchReport, Figure, Goal, Rounds};

/// Goal in % of the operations.
const LOST_MAX: f64 = 2.0;
const ROUNDS: usize = 9;
const ROUNDS_QUICK: usize = 1;
/// Writes of a round.
const WRITES: u64 = 6_000;

#[path = "../../../blkkin/tests/support/tools.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests, which use more of it")]
mod tools;
#[path = "../../../blkkin/tests/support/vm.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "shared with the tests: without a guest there is nothing to measure"
)]
mod vm;

/// Script of the guest. /proc/uptime has hundredths of a second.
const SCRIPT: &str = r#"
load() {
    read -r begin _ < /proc/uptime
    dd if=/dev/zero of=/dev/vda bs=4096 count=WRITES oflag=direct conv=notrunc 2> /dev/null
    read -r end _ < /proc/uptime
    echo "round: $1 $begin $end"
}
load warm-up
for round in $(seq ROUNDS); do
    load without
    start_agent --metrics off
    load with
    end_agent
done
echo "guest: done"
poweroff -f
"#;

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let rounds = if setting.extent.is_quick() { ROUNDS_QUICK } else { ROUNDS };
    let kernel = vm::kernel().map_err(anyhow::Error::msg)?;
    let binary = tools::static_binary().map_err(anyhow::Error::msg)?;
    let folder = setting.folder.join("guest");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let [disk, port] = ["disk.img", "port.sock"].map(|name| folder.join(name));
    std::fs::File::create(&disk)?.set_len(64 << 20)?;
    let script = SCRIPT.replace("WRITES", &WRITES.to_string()).replace("ROUNDS", &rounds.to_string());
    let drive = format!("file={},if=virtio,format=raw,cache=none", disk.display());
    let options = vm::GuestOptions {
        name: "bench",
        uuid: "11111111-2222-3333-4444-555555555555",
        machine_id: 0x0123_4567_89ab_cdef,
        script,
        disks: vec!["-drive".to_owned(), drive],
        gets_socket: false,
        command: &tools::tool,
    };
    let guest = vm::Guest::start(&folder, &kernel, &binary, &port, &options);
    let host = Host::start(port);
    guest.wait_for("done");
    let records = host.stop();
    let console = guest.console();
    let [without, with] = ["without", "with"].map(|which| seconds(&console, which));
    ensure!(
        without.len() == rounds && with.len() == rounds && records > 0,
        "the guest ended early: {console}"
    );
    ensure!(
        !console.contains("records lost before") || console.contains("; 0 records lost before"),
        "{console}"
    );
    Ok(build_report(&without, &with, records))
}

fn build_report(without: &[f64], with: &[f64], records: u64) -> BenchReport {
    let rate = |seconds: &[f64]| seconds.iter().map(|seconds| WRITES as f64 / seconds).collect::<Rounds>();
    let (without, with) = (rate(without), rate(with));
    let lost = Rounds::ratios(&with, &without).map(|ratio| 100.0 * (1.0 - ratio));
    let figures = vec![
        Figure::of("operations lost to the guest's agent", &lost, "%").goal(Goal::AtMost(LOST_MAX)),
        Figure::of("writes without the agent", &without, "/s"),
        Figure::of("writes with the agent", &with, "/s"),
    ];
    let how = format!(
        "A guest with Linux 6.12 and two CPUs, emulated without KVM, writes 4 KiB {WRITES} times past its page cache, without its \
         agent and with it in turns; the host acknowledged {records} records at once."
    );
    BenchReport { how, figures, ..BenchReport::default() }
}

/// Returns the seconds of each round of one kind.
fn seconds(console: &str, which: &str) -> Vec<f64> {
    let round = |line: &str| {
        let [kind, begin, end] = line.strip_prefix("round: ")?.split_whitespace().collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let time = |text: &str| text.parse::<f64>().ok();
        (kind == which).then_some(time(end)? - time(begin)?)
    };
    console.lines().filter_map(round).collect()
}

/// Host's end of the port, which acknowledges each record.
struct Host {
    stop: Arc<AtomicBool>,
    records: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Host {
    fn start(port: PathBuf) -> Host {
        let (stop, records) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_over, count) = (Arc::clone(&stop), Arc::clone(&records));
        let thread = std::thread::spawn(move || {
            // QEMU closes it at its end.
            let _ = serve(&port, &is_over, &count);
        });
        Host { stop, records, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Relaxed);
        let _ = self.thread.join();
        self.records.load(Relaxed)
    }
}

fn serve(port: &Path, stop: &AtomicBool, records: &AtomicU64) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(port)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let (mut receiver, mut buffer, mut silent) = (Receiver::new(1), vec![0; 64 << 10], 0);
    while !stop.load(Relaxed) {
        stream.write_all(&receiver.take_output())?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                let mut last = None;
                receiver.receive(&buffer[..count], |record| {
                    records.fetch_add(1, Relaxed);
                    last = Some(record.number);
                });
                last.into_iter().for_each(|number| receiver.acknowledge(number));
                silent = 0;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => silent += 1,
            Err(error) => return Err(error),
        }
        // A new agent has not seen the last request.
        if silent == 5 {
            receiver.resume();
            silent = 0;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_read_from_the_console() {
        let console = "round: warm-up 1.00 2.00\nround: without 2.00 4.50\nnoise\nround: with 5.00 8.00\n";
        assert_eq!((seconds(console, "without"), seconds(console, "with")), (vec![2.5], vec![3.0]));
        let report = build_report(&[2.5], &[3.0], 7);
        assert!((report.figures[0].value - 100.0 / 6.0).abs() < 1e-9, "{:?}", report.figures[0]);
    }
}
