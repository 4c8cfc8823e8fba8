//! Operations per second of this server and of nbdkit's file plugin, and the cost of being traced.
//!
//! `cargo bench -p blkkin-nbd`; `-- ROUNDS SECONDS` replaces the default of 5 rounds of 3 s. The
//! load is fio's nbd engine: random reads of 4 KiB, 16 in flight, one connection over a Unix
//! socket, the file in memory (/dev/shm). Every round measures each server once, one directly after
//! another and in rotating order, so other load of the machine affects all of them. The result is
//! the median of the ratios, for operations per second and for the server's CPU time per operation,
//! on which other load has less effect.
//!
//! For the cost of being traced, the same server runs with LTTng daemons but no recording session
//! (*idle*), and with a session that records all its events, by daemons on the same CPUs
//! (*traced*). Their ratios are to the server with LTTng disabled.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark for people: an error ends it")]

#[path = "../../ust-provider/tests/support/lttng.rs"]
#[allow(dead_code, reason = "shared with another crate, and used in part")]
mod lttng;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BYTES: usize = 256 << 20;

struct Server {
    name: &'static str,
    uri: String,
    process: Child,
}

impl Server {
    fn start(name: &'static str, folder: &Path, file: &Path, mut command: Command) -> Self {
        let socket = folder.join(name);
        if command.get_program() == "nbdkit" {
            command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(file);
        } else {
            command.arg(file).arg("--unix").arg(&socket);
        }
        let process = command.stdout(Stdio::null()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while !socket.exists() {
            assert!(Instant::now() < end, "{name} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { name, uri: format!("nbd+unix:///?socket={}", socket.display()), process }
    }

    fn measure(&self, seconds: &str) -> Measured {
        let before = self.cpu();
        let output = Command::new("fio")
            .args(["--name=x", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=16", "--thread"])
            .args(["--time_based", "--output-format=json", &format!("--runtime={seconds}")])
            .arg(format!("--uri={}", self.uri))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = String::from_utf8(output.stdout).unwrap();
        let report: Value = serde_json::from_str(&output[output.find('{').unwrap()..]).unwrap();
        let read = &report["jobs"][0]["read"];
        let cpu = (self.cpu() - before) / read["total_ios"].as_f64().unwrap();
        Measured { iops: read["iops"].as_f64().unwrap(), cpu }
    }

    /// Returns the CPU time in µs, in user and kernel mode, with that of threads that have ended
    /// (proc(5): `utime` and `stime`, in ticks of 10 ms).
    fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // The name may contain any character. After it, `utime` is the twelfth field.
        let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<f64>().unwrap() * 1e4).sum()
    }
}

#[derive(Clone, Copy, Default)]
struct Measured {
    iops: f64,
    /// CPU time of the server per operation, in µs.
    cpu: f64,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let rounds: usize = numbers.next().map_or(5, |text| text.parse().unwrap());
    let seconds = numbers.next().unwrap_or_else(|| "3".to_owned());
    for program in ["fio", "nbdkit"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: {program} not installed");
            return;
        }
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("disk");
    fill(&file);
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_blkkin-nbd"));
    let start = |name, command| Server::start(name, folder.path(), &file, command);
    let untraced = |options: &[&str]| {
        let mut command = Command::new(own);
        command.args(options).env("BLKKIN_UST", "0");
        command
    };
    let mut servers = vec![
        start("nbdkit", Command::new("nbdkit")),
        start("threads", untraced(&[])),
        start("rings", untraced(&["--rings", "1"])),
    ];
    // Separate daemons, so that a session of one does not record the other server.
    let daemons = [lttng::Lttng::start(), lttng::Lttng::start()];
    match &daemons {
        [Ok(idle), Ok(traced)] => {
            traced.record("nbd", &["blkkin:*"], &["--subbuf-size=4M", "--num-subbuf=8"]);
            servers.push(start("idle", idle.command(idle.install(own))));
            servers.push(start("traced", traced.command(traced.install(own))));
        }
        [Err(reason), _] | [_, Err(reason)] => println!("skipped the cost of being traced: {reason}"),
    }
    let mut ratios = vec![(Vec::new(), Vec::new()); servers.len()];
    for round in 0..rounds {
        let mut now = vec![Measured::default(); servers.len()];
        for turn in 0..servers.len() {
            let which = (turn + round) % servers.len();
            now[which] = servers[which].measure(&seconds);
        }
        let line = servers.iter().zip(&now);
        let line =
            line.map(|(server, now)| format!("{} {:.0} k/s {:.1} µs", server.name, now.iops / 1e3, now.cpu));
        println!("{}", line.collect::<Vec<_>>().join("   "));
        for (which, (iops, cpu)) in ratios.iter_mut().enumerate() {
            iops.push(now[which].iops / now[baseline(which)].iops);
            cpu.push(now[which].cpu / now[baseline(which)].cpu);
        }
    }
    for (which, (iops, cpu)) in ratios.iter_mut().enumerate().skip(1) {
        let (own, other) = (servers[which].name, servers[baseline(which)].name);
        println!(
            "{own} / {other}: operations per second {}, CPU per operation {}",
            median(iops),
            median(cpu)
        );
    }
}

/// Formats the median and the range: `1.25 (1.10 to 1.41)`.
fn median(ratios: &mut [f64]) -> String {
    ratios.sort_by(f64::total_cmp);
    format!("{:.3} ({:.3} to {:.3})", ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1])
}

/// Returns the index of the server that the ratio is to.
fn baseline(which: usize) -> usize {
    if which < 3 { 0 } else { 1 }
}

/// Fills the file with data other than zeroes, which a server could treat as holes.
fn fill(file: &Path) {
    let mut word = 1_u64;
    let block: Vec<u8> = std::iter::repeat_with(|| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word.to_le_bytes()
    })
    .take((1 << 20) / 8)
    .flatten()
    .collect();
    let mut file = File::create(file).unwrap();
    (0..BYTES >> 20).for_each(|_| file.write_all(&block).unwrap());
    drop(fs::File::sync_data(&file));
}
