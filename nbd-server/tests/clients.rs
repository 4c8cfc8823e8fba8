//! Real clients: the programs of libnbd and QEMU, and fio. They read what they wrote, the export's
//! description is correct, and their counts equal the server's system calls.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;

use support::{MODES, RunningServer, are_installed, capture, fill, fio, pattern};

const MIB: u64 = 1 << 20;

#[test]
fn nbdinfo_prints_the_export() {
    if !are_installed(&["nbdinfo"]) {
        return;
    }
    for (mode, options) in MODES.iter().zip([&["--name", "disk"][..], &["--name", "disk", "--read-only"]]) {
        let server = RunningServer::start(mode, 3 * MIB + 5, options);
        let read_only = options.contains(&"--read-only");
        for uri in &server.uris {
            let info: Value =
                serde_json::from_str(&capture(Command::new("nbdinfo").args(["--json", uri]))).unwrap();
            assert_eq!(info["protocol"], "newstyle-fixed");
            assert_eq!(info["structured"], true);
            let export = &info["exports"][0];
            assert_eq!(export["export-size"], 3 * MIB + 5);
            assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
            for can in ["can_cache", "can_df", "can_flush", "can_fua", "can_multi_conn"] {
                assert_eq!(export[can], true, "{can}");
            }
            for can in ["can_fast_zero", "can_trim", "can_zero"] {
                assert_eq!(export[can], !read_only, "{can}");
            }
            assert_eq!(export["is_read_only"], read_only);
            let limits = ["minimum", "preferred", "maximum"]
                .map(|limit| export[format!("block_size_{limit}")].clone());
            assert_eq!(limits, [1, 4_096, 32 * MIB]);
            let listed = capture(Command::new("nbdinfo").args(["--list", "--json", uri]));
            assert_eq!(serde_json::from_str::<Value>(&listed).unwrap()["exports"][0]["export-name"], "disk");
        }
        let refused = Command::new("nbdinfo").arg(server.tcp().to_owned() + "/another").output().unwrap();
        assert!(!refused.status.success());
        server.stop();
    }
}

#[test]
fn copies_are_equal_and_holes_stay_holes() {
    if !are_installed(&["nbdcopy", "nbdinfo", "cmp"]) {
        return;
    }
    for mode in MODES {
        let server = RunningServer::start(mode, 64 * MIB, &[]);
        let source = server.path("source");
        fs::File::create(&source).unwrap().set_len(64 * MIB).unwrap();
        for block in [0, 5, 6, 40, 63] {
            fill(&source, block * MIB, MIB as usize);
        }
        let copy = server.path("copy");
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        capture(Command::new("nbdcopy").args(["--connections=4", "--flush", &path(&source), server.tcp()]));
        capture(Command::new("nbdcopy").args(["--connections=4", server.uri(), &path(&copy)]));
        for file in [&server.file, &copy] {
            capture(Command::new("cmp").args([&source, file]));
        }
        let map = capture(Command::new("nbdinfo").args(["--map", "--json", server.uri()]));
        let map: Vec<Value> = serde_json::from_str(&map).unwrap();
        let extents: Vec<(u64, u64, u64)> = map.iter().map(numbers).collect();
        let expected = [(0, 1, 0), (1, 4, 3), (5, 2, 0), (7, 33, 3), (40, 1, 0), (41, 22, 3), (63, 1, 0)];
        assert_eq!(extents, expected.map(|(at, length, kind)| (at * MIB, length * MIB, kind)));
        server.stop();
    }
}

fn numbers(extent: &Value) -> (u64, u64, u64) {
    let number = |key: &str| extent[key].as_u64().unwrap();
    (number("offset"), number("length"), number("type"))
}

#[test]
fn qemu_reads_what_it_wrote_and_zeroes_where_it_zeroed_or_discarded() {
    if !are_installed(&["qemu-img", "qemu-io"]) {
        return;
    }
    for mode in MODES {
        let server = RunningServer::start(mode, 64 * MIB, &[]);
        let source = server.path("source");
        fs::write(&source, pattern(0, 8 * MIB as usize)).unwrap();
        let source = source.to_str().unwrap();
        capture(Command::new("qemu-img").args([
            "convert",
            "-n",
            "-f",
            "raw",
            "-O",
            "raw",
            source,
            server.uri(),
        ]));
        let all = ["read -P 0 8M 56M", "write -P 0x5a 10M 1M", "write -f -P 0x5b 11M 65536", "flush"];
        let zeroes = ["write -z 10M 4k", "write -z -u 10752k 8k", "discard 11M 4k", "read -P 0 10M 4k"];
        let rest = ["read -P 0x5a 10244k 508k", "read -P 0 10752k 8k", "read -P 0x5b 11268k 60k"];
        let mut io = Command::new("qemu-io");
        io.args(["-f", "raw", "-d", "unmap", server.uri()]);
        for command in [&all[..], &zeroes, &rest].concat() {
            io.args(["-c", command]);
        }
        let output = capture(&mut io);
        assert!(!output.contains("failed") && !output.contains("rror"), "{output}");
        // The same content, read from the file itself.
        let content = fs::read(&server.file).unwrap();
        assert_eq!(content[..8 * MIB as usize], pattern(0, 8 * MIB as usize));
        let assert_filled = |from: u64, length: u64, byte: u8| {
            let range = from as usize..(from + length) as usize;
            assert!(content[range].iter().all(|other| *other == byte), "{from} {length} {byte}");
        };
        assert_filled(10 * MIB, 4_096, 0);
        assert_filled(10 * MIB + 4_096, 508 << 10, 0x5a);
        assert_filled(10_752 << 10, 8_192, 0);
        assert_filled(11 * MIB + 4_096, 60 << 10, 0x5b);
        let map = |what: &str| {
            let map = capture(Command::new("qemu-img").args(["map", "-f", "raw", "--output=json", what]));
            let map: Vec<Value> = serde_json::from_str(&map).unwrap();
            map.iter()
                .map(|part| (part["start"].clone(), part["length"].clone(), part["zero"].clone()))
                .collect()
        };
        let (by_nbd, by_file): (Vec<_>, Vec<_>) = (map(server.uri()), map(server.file.to_str().unwrap()));
        assert_eq!(by_nbd, by_file);
        server.stop();
    }
}

#[test]
fn fio_verifies_its_writes_on_four_connections() {
    if !are_installed(&["fio"]) {
        return;
    }
    for mode in MODES {
        let server = RunningServer::start(mode, 64 * MIB, &[]);
        for (uri, sizes) in server.uris.iter().zip(["4k-4k", "512-128k"]) {
            let (uri, sizes) = (format!("--uri={uri}"), format!("--bsrange={sizes}"));
            let parts =
                ["--numjobs=4", "--size=16m", "--offset_increment=16m", "--iodepth=16", "--bs_unaligned"];
            let verified = [
                "--rw=randwrite",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
                "--verify_state_save=0",
            ];
            let [read, written, _] = fio(&[&[&*uri, &*sizes], &parts[..], &verified].concat());
            assert!(written > 500 && read >= written, "{read} {written}");
        }
        server.stop();
    }
}

/// Compares fio's counts with the system calls that strace records. The server is a child of
/// strace.
#[test]
fn the_server_makes_one_system_call_for_each_operation_of_fio() {
    if !are_installed(&["fio", "strace"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    // `-y` prints a descriptor's file, which distinguishes reads of the file from those of sockets.
    let traced =
        ["-f", "-qq", "-y", "-e", "trace=pread64,pwrite64,pwritev2,fdatasync", "-o", log.to_str().unwrap()];
    let wrapper = [&["strace"], &traced[..]].concat();
    let mut server = RunningServer::start_under(&wrapper, MODES[0], 16 * MIB, &[]);
    let uri = format!("--uri={}", server.uri());
    let load =
        ["--rw=randrw", "--bs=4k", "--size=16m", "--io_size=2m", "--iodepth=16", "--numjobs=4", "--fsync=32"];
    let [read, written, synced] = fio(&[&[&*uri], &load[..]].concat());
    // strace ends when its child ends.
    let child = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.pid())).unwrap();
    capture(Command::new("kill").arg(child.trim()));
    server.wait();
    let calls = fs::read_to_string(&log).unwrap();
    let file = server.file.to_str().unwrap();
    // A call that is interrupted in the log has two lines, of which only the first has the file.
    let count = |call: &str| {
        calls.lines().filter(|line| line.contains(&format!(" {call}(")) && line.contains(file)).count() as u64
    };
    println!("fio: {read} reads, {written} writes, {synced} syncs");
    assert_eq!((count("pread64"), count("pwrite64")), (read, written));
    assert!(synced > 0 && count("fdatasync") >= synced, "{} {synced}", count("fdatasync"));
    assert_eq!(read + written, 4 * 512);
}
