//! Operations a second of this server and of nbdkit's file plugin, on the same file, by the same client, in turns.
//!
//! `cargo bench -p blkkin-nbd`, with `-- ROUNDS SECONDS` for others than 5 of 3 s. fio's nbd engine, 4 KiB, random reads, 16 in
//! flight, one connection over a Unix socket, the file in memory (/dev/shm). Every round measures each server once, right after
//! another, the order turning, so what else the machine does hits all. What counts is the median of the ratios.
//!
//! Beside it stands the server's CPU time for one operation, which the machine's other work changes less.
//!
//! Besides, what being traced costs: the same server with LTTng there and nobody recording (*idle*), and with all its
//! events recorded, by daemons on the same CPUs (*traced*); its ratios are to the one that was told to know nothing of LTTng.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people: what fails ends it")]

#[path = "../../ust-provider/tests/support/lttng.rs"]
#[allow(dead_code, reason = "it is another crate's, and used in part")]
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
        let said = String::from_utf8(output.stdout).unwrap();
        let told: Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
        let read = &told["jobs"][0]["read"];
        let cpu = (self.cpu() - before) / read["total_ios"].as_f64().unwrap();
        Measured { iops: read["iops"].as_f64().unwrap(), cpu }
    }

    /// µs that it has spent, in the kernel too, by threads that have ended too (proc(5): `utime`, `stime`, ticks of 10 ms).
    fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // Behind the name, which may hold anything, `utime` is the twelfth.
        let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<f64>().unwrap() * 1e4).sum()
    }
}

#[derive(Clone, Copy, Default)]
struct Measured {
    iops: f64,
    /// µs of the server's CPU time an operation.
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
            println!("skipped: no {program} here");
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
    let ignorant = |options: &[&str]| {
        let mut command = Command::new(own);
        command.args(options).env("BLKKIN_UST", "0");
        command
    };
    let mut servers = vec![
        start("nbdkit", Command::new("nbdkit")),
        start("threads", ignorant(&[])),
        start("rings", ignorant(&["--rings", "1"])),
    ];
    // Each has daemons of its own: what is recorded of one says nothing to the other.
    let daemons = [lttng::Lttng::start(), lttng::Lttng::start()];
    match &daemons {
        [Ok(idle), Ok(traced)] => {
            traced.record("nbd", &["blkkin:*"], &["--subbuf-size=4M", "--num-subbuf=8"]);
            servers.push(start("idle", idle.command(idle.install(own))));
            servers.push(start("traced", traced.command(traced.install(own))));
        }
        [Err(why), _] | [_, Err(why)] => println!("skipped, what being traced costs: {why}"),
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
            iops.push(now[which].iops / now[base(which)].iops);
            cpu.push(now[which].cpu / now[base(which)].cpu);
        }
    }
    for (which, (iops, cpu)) in ratios.iter_mut().enumerate().skip(1) {
        let (own, other) = (servers[which].name, servers[base(which)].name);
        println!("{own} / {other}: operations a second {}, CPU an operation {}", median(iops), median(cpu));
    }
}

/// `1.25 (1.10 to 1.41)`
fn median(ratios: &mut [f64]) -> String {
    ratios.sort_by(f64::total_cmp);
    format!("{:.3} ({:.3} to {:.3})", ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1])
}

/// With which one it is compared.
fn base(which: usize) -> usize {
    if which < 3 { 0 } else { 1 }
}

/// Not zeroes: those would be holes to a clever server.
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
