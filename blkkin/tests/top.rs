//! `blkkin top`: totals of block requests that the kernel side counts.
//!
//! *Input*: fio on an ext4 file system, and processes of many names. *Independent counts*: the kernel's
//! of the device (`/sys/block/*/stat`), fio's own, and a `blkkin trace` that records every request meanwhile.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::broker::child::KillOnDrop;
use crate::common;
use crate::support::aio::Aio;
use crate::support::direct;
use crate::support::disk::{Disk, stat_columns};
use crate::support::fio::Fio;
use crate::support::live::{LiveTrace, eventually};
use crate::support::missed_ends::RUNS_MAX;
use crate::support::terminal::OnTerminal;
use crate::support::tools::kernel;
use crate::support::{needs, or_skip};

/// A `blkkin top --json` of one disk.
struct Top {
    process: KillOnDrop,
    output: PathBuf,
}

impl Top {
    fn start(disk: &Disk) -> Top {
        let output = disk.file("top.json");
        let file = std::fs::File::create(&output).unwrap();
        let mut command = common::blkkin(&["top", "--json", "--interval", "300ms", "--device", disk.name()]);
        let process = KillOnDrop(command.stdout(Stdio::from(file)).spawn().unwrap());
        let top = Top { process, output };
        // By the first object it counts.
        top.wait_for_samples(1);
        top
    }

    fn samples(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.output).unwrap();
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn wait_for_samples(&self, more: usize) {
        let wanted = self.samples().len() + more;
        assert!(eventually(|| self.samples().len() >= wanted), "blkkin top prints no object");
    }

    /// Ends it, and returns its rows and what it did not count.
    fn finish(mut self) -> (Vec<Value>, Value) {
        // The interval that runs now, and the next one.
        self.wait_for_samples(2);
        // SAFETY: passes numbers only; the process has not been waited for.
        unsafe { libc::kill(self.process.0.id() as libc::pid_t, libc::SIGTERM) };
        assert!(self.process.0.wait().unwrap().success());
        let samples = self.samples();
        let rows = samples.iter().flat_map(|sample| sample["rows"].as_array().unwrap().clone()).collect();
        let sum =
            |of: fn(&Value) -> &Value| samples.iter().map(|sample| of(sample).as_u64().unwrap()).sum::<u64>();
        let rest = serde_json::json!({
            "others": sum(|sample| &sample["others"]["requests"]),
            "untracked": sum(|sample| &sample["untracked"]),
            "missed": sum(|sample| &sample["missed"]),
        });
        (rows, rest)
    }
}

fn sum(rows: &[Value], name: &str) -> u64 {
    rows.iter().map(|row| row[name].as_u64().unwrap()).sum()
}

#[test]
fn each_request_of_a_disk_is_counted_with_its_time() {
    needs!("fio", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(64 << 20));
    let (file, report) = (disk.mount_point().join("data"), disk.file("fio.json"));
    std::fs::write(&file, vec![7; 16 << 20]).unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    for run in 1.. {
        let fio = Fio {
            target: &file,
            pattern: "randwrite",
            jobs: 4,
            requests: 1_000,
            bytes: 4096,
            report: &report,
        };
        let live = LiveTrace::trace(&["--device", disk.name()], disk.file("trace.json"));
        let top = Top::start(&disk);
        let before = stat_columns(disk.name());
        let command = fio.args();
        assert!(std::process::Command::new(&command[0]).args(&command[1..]).status().unwrap().success());
        // What others wrote, a commit of the journal, and a flush.
        std::fs::write(disk.mount_point().join("more"), vec![1; 1 << 20]).unwrap();
        std::fs::File::open(disk.mount_point()).unwrap().sync_all().unwrap();
        crate::support::disk::sync(&disk.mount_point());
        // A flush without data.
        std::fs::File::open(disk.node()).unwrap().sync_all().unwrap();
        let counted: Vec<u64> =
            stat_columns(disk.name()).iter().zip(&before).map(|(after, before)| after - before).collect();
        let (rows, rest) = top.finish();
        let trace = live.finish();
        let of = |operation: &str| -> Vec<Value> {
            rows.iter().filter(|row| row["operation"] == operation).cloned().collect()
        };
        let (writes, flushes) = (of("write"), of("flush"));
        println!(
            "{counted:?}; {} writes, {} flushes; {rest}",
            sum(&writes, "requests"),
            sum(&flushes, "requests")
        );
        let found = sum(&rows, "requests");
        let expected = counted[0] + counted[4];
        // Completions that the kernel hid from every program, at most a few.
        if found < expected && expected - found <= 5 && run < RUNS_MAX {
            continue;
        }
        assert_eq!(rest, serde_json::json!({ "others": 0, "untracked": 0, "missed": 0 }));
        // The kernel counts a flush without data as a write.
        assert_eq!(sum(&writes, "requests") + sum(&flushes, "requests"), counted[4], "{rows:#?}");
        assert_eq!(sum(&rows, "bytes"), (counted[2] + counted[6]) * 512);
        assert!(sum(&flushes, "requests") > 0 && sum(&flushes, "bytes") == 0, "{flushes:?}");
        let by_fio: Vec<Value> = writes.iter().filter(|row| row["program"] == "fio").cloned().collect();
        // The file's first write after it was mounted changes its inode too.
        let direct = fio.parse_report().requests;
        assert!((direct..direct + 8).contains(&sum(&by_fio, "requests")), "{direct}: {by_fio:#?}");
        // The kernel's time begins when the request is allocated, and ends after the request's bios and the programs of
        // both processes (once 4.1 µs later for each request). It has ms, summed from ns.
        let own = sum(&rows, "queue_ns") + sum(&rows, "device_ns");
        let kernels = (counted[3] + counted[7]) * 1_000_000;
        println!("ns of {found} requests by blkkin top and by the kernel: {own} and {kernels}");
        let rounded = kernels / 10 + 2_000_000;
        assert!(own <= kernels + rounded, "{own} and {kernels}");
        assert!(kernels <= own + rounded + 10_000 * found, "{own} and {kernels}, {found} requests");
        if is_same_as(&rows, &trace, &disk) {
            return;
        }
        assert!(run < RUNS_MAX, "in each of {run} runs the times differ");
    }
}

/// Reads that wait in a plug, and flushes. Before Linux 6.5 the kernel announces no request, and issues no flush.
#[test]
fn the_time_in_the_queue_and_flushes_are_counted() {
    const BATCHES: u64 = 20;
    const DEPTH: u64 = 64;
    const FLUSHES: u64 = 30;
    needs!("losetup");
    let disk = or_skip!(Disk::raw(8 << 20));
    let device = direct::open(disk.node());
    for run in 1.. {
        let top = Top::start(&disk);
        let before = stat_columns(disk.name());
        let mut aio = Aio::new(DEPTH as usize);
        for _ in 0..BATCHES {
            // Not next to each other, so that no two are one request.
            let offsets: Vec<u64> = (0..DEPTH).map(|n| n * 2 * direct::BLOCK as u64).collect();
            aio.read(&device, &offsets, direct::BLOCK);
            aio.wait(offsets.len(), direct::BLOCK);
        }
        for _ in 0..FLUSHES {
            device.sync_all().unwrap();
        }
        let (rows, rest) = top.finish();
        // The kernel counts a request after its bios have ended.
        let counted: Vec<u64> =
            stat_columns(disk.name()).iter().zip(&before).map(|(after, before)| after - before).collect();
        let of = |operation: &str, name: &str| {
            let rows = rows.iter().filter(|row| row["operation"] == operation);
            rows.map(|row| row[name].as_u64().unwrap()).sum::<u64>()
        };
        let found = of("read", "requests") + of("flush", "requests");
        if found < counted[0] + counted[4] && counted[0] + counted[4] - found <= 5 && run < RUNS_MAX {
            continue;
        }
        assert_eq!(rest, serde_json::json!({ "others": 0, "untracked": 0, "missed": 0 }));
        // The kernel counts a flush without data as a write.
        let requests = [of("read", "requests"), of("flush", "requests")];
        assert_eq!(requests, [counted[0], counted[4]], "{rows:#?}");
        assert!(requests[0] >= BATCHES * DEPTH && requests[1] >= FLUSHES, "{rows:#?}");
        assert_eq!((of("flush", "bytes"), of("flush", "device_ns")), (0, 0), "{rows:#?}");
        // Half of a batch waits for the other half to be submitted, and a flush for its end.
        assert!(of("read", "queue_ns") > BATCHES * DEPTH * 200, "{rows:#?}");
        assert!(of("flush", "queue_ns") > FLUSHES * 1_000, "{rows:#?}");
        if kernel() < (6, 5) {
            let of_flushes = rows.iter().filter(|row| row["operation"] == "flush");
            let is_unknown = |row: &Value| row["program"] == "unknown" && row["cgroup"] == "unknown";
            assert!(of_flushes.clone().count() > 0 && of_flushes.into_iter().all(is_unknown), "{rows:#?}");
        }
        for (operation, of_kernel) in [("read", counted[3]), ("flush", counted[7])] {
            let [queue, device] = ["queue_ns", "device_ns"].map(|name| of(operation, name));
            let of_kernel = of_kernel * 1_000_000;
            println!(
                "{operation}: {queue} ns in the queue, {device} ns in the device, {of_kernel} ns by the kernel"
            );
            // The kernel has ms, summed from ns.
            let own = queue + device;
            assert!(own <= of_kernel * 11 / 10 + 2_000_000, "{rows:#?}");
            // Since 6.9 its time begins with the plug, before the request is allocated. It ends after the programs: an
            // emulated CPU may be taken away in between.
            let after_programs = 500_000 * of(operation, "requests");
            let least = of_kernel.saturating_sub(2_000_000 + after_programs);
            assert!(kernel() >= (6, 9) || own * 11 / 10 >= least, "{rows:#?}");
        }
        return;
    }
}

/// Compares the rows with the report of a trace that recorded every request, and returns whether the times are the same.
/// Both read the clock one after the other at each hook, and both round a time to a part of itself. What runs on the CPU
/// between the two readings is in one of them only (once 0.26 ms, next to two guests).
fn is_same_as(rows: &[Value], trace: &Value, disk: &Disk) -> bool {
    let devices = trace["devices"].as_array().unwrap();
    let device = devices.iter().find(|device| device["device"] == disk.name()).unwrap();
    let mut is_same = true;
    let operations = device["operations"].as_array().unwrap();
    assert!(!operations.is_empty(), "{device:#}");
    for operation in operations {
        let own: Vec<Value> =
            rows.iter().filter(|row| row["operation"] == operation["operation"]).cloned().collect();
        assert_eq!(sum(&own, "requests"), operation["requests"].as_u64().unwrap(), "{operation:#}");
        assert_eq!(sum(&own, "bytes"), operation["bytes"].as_u64().unwrap(), "{operation:#}");
        for (name, part) in [("queue_ns", "queue"), ("device_ns", "device")] {
            let (own, traced) = (sum(&own, name), operation[part]["total_ns"].as_u64().unwrap());
            let requests = operation["requests"].as_u64().unwrap();
            println!("{} {name}: {own} by blkkin top, {traced} by blkkin trace", operation["operation"]);
            is_same &= own.abs_diff(traced) <= traced / 10 + 2_000 * requests + 100_000;
        }
    }
    is_same
}

/// Reads a block of the disk as a process of this name. Returns whether the read succeeded.
fn read_as(name: &str, node: &Path, offset: i64) -> bool {
    let (name, node) = (CString::new(name).unwrap(), CString::new(node.as_os_str().as_bytes()).unwrap());
    // SAFETY: strings outlive the calls; between fork and _exit the child makes system calls only.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
            let fd = libc::open(node.as_ptr(), libc::O_RDONLY | libc::O_DIRECT);
            libc::_exit(i32::from(libc::pread(fd, page, 4096, offset) != 4096));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status == 0
    }
}

#[test]
fn more_programs_than_keys_are_counted_together() {
    const PROGRAMS: u64 = 1_400;
    needs!("losetup");
    let disk = or_skip!(Disk::raw(8 << 20));
    let top = Top::start(&disk);
    for n in 0..PROGRAMS {
        assert!(read_as(&format!("program{n}"), disk.node(), 4096 * (n as i64 % 2_000)));
    }
    let (rows, rest) = top.finish();
    let mut own: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["program"].as_str().filter(|name| name.starts_with("program")))
        .collect();
    own.sort_unstable();
    own.dedup();
    let others = rest["others"].as_u64().unwrap();
    println!("{} programs by name, {others} requests of others", own.len());
    assert!(own.len() > 900 && others > 300, "{}, {others}", own.len());
    let found = sum(&rows, "requests") + others;
    assert!(found <= PROGRAMS && PROGRAMS - found <= 5, "{found}");
}

#[test]
fn the_screen_shows_the_disk_and_ends_by_a_key() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(8 << 20));
    let command = common::blkkin(&["top", "--interval", "200ms", "--device", disk.name()]);
    let mut screen = OnTerminal::start(command, None);
    assert!(screen.wait_for("q quit"), "no screen");
    assert!(read_as("reader", disk.node(), 0));
    assert!(screen.wait_for("reader"), "the reader is not shown");
    // In raw mode Ctrl-C is a key.
    screen.interrupt();
    let text = screen.wait_for_exit();
    assert!(text.contains(disk.name()), "{text:?}");
    // The cursor and the other screen are back.
    assert!(text.ends_with("\u{1b}[?25h\u{1b}[?1049l"), "{text:?}");
}

/// A screen that nothing reads any more must not use a CPU for ever.
#[test]
fn the_end_of_the_terminal_ends_it() {
    needs!("losetup");
    let command = common::blkkin(&["top", "--interval", "200ms"]);
    let mut screen = OnTerminal::start(command, None);
    assert!(screen.wait_for("q quit"), "no screen");
    assert!(screen.hang_up(), "it runs on without a terminal");
}

#[test]
fn invalid_arguments_are_refused() {
    let run = |args: &[&str]| common::run(args).expect_code(2).stderr;
    assert!(run(&["top", "--interval", "1ms"]).contains("--interval 1ms is too short"));
    assert!(run(&["top", "--device", "nosuchdisk"]).contains("nosuchdisk"));
}
