//! Operations a second of this server and of nbdkit's file plugin, on the same file, by the same client, in turns.
//!
//! `cargo bench -p blkkin-nbd`, with `-- ROUNDS SECONDS` for others than 5 of 3 s. fio's nbd engine, 4 KiB, random reads, 16 in
//! flight, one connection over a Unix socket, the file in memory (/dev/shm). Every round measures each server once, right after
//! another, the order turning; a ratio is of two neighbours, so what else the machine does hits both. What counts is the
//! median of the ratios.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people: what fails ends it")]

use std::fs::{self, File};
use std::io::Write;
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
    fn start(name: &'static str, folder: &Path, file: &Path, program: &str, options: &[&str]) -> Self {
        let socket = folder.join(name);
        let mut command = Command::new(program);
        if program == "nbdkit" {
            command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(file);
        } else {
            command.arg(file).arg("--unix").arg(&socket).args(options);
        }
        let process = command.stdout(Stdio::null()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while !socket.exists() {
            assert!(Instant::now() < end, "{name} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { name, uri: format!("nbd+unix:///?socket={}", socket.display()), process }
    }

    fn iops(&self, seconds: &str) -> f64 {
        let output = Command::new("fio")
            .args(["--name=x", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=16", "--thread"])
            .args(["--time_based", "--output-format=json", &format!("--runtime={seconds}")])
            .arg(format!("--uri={}", self.uri))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        let told: Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
        told["jobs"][0]["read"]["iops"].as_f64().unwrap()
    }
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
    let own = env!("CARGO_BIN_EXE_blkkin-nbd");
    let start = |name, program, options: &[&str]| Server::start(name, folder.path(), &file, program, options);
    let servers =
        [start("nbdkit", "nbdkit", &[]), start("threads", own, &[]), start("rings", own, &["--rings", "1"])];
    let mut ratios = vec![Vec::new(); servers.len()];
    for round in 0..rounds {
        let mut iops = vec![0.0; servers.len()];
        for turn in 0..servers.len() {
            let which = (turn + round) % servers.len();
            iops[which] = servers[which].iops(&seconds);
        }
        let line: Vec<String> = servers
            .iter()
            .zip(&iops)
            .map(|(server, iops)| format!("{} {:.0} k/s", server.name, iops / 1e3))
            .collect();
        println!("{}", line.join("   "));
        ratios.iter_mut().zip(&iops).for_each(|(of, own)| of.push(own / iops[0]));
    }
    for (server, ratios) in servers.iter().zip(&mut ratios).skip(1) {
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        println!("{} / nbdkit: {:.2} ({least:.2} to {most:.2})", server.name, ratios[ratios.len() / 2]);
    }
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
