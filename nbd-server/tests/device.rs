//! A served block device: a loop device, whose backing file shows what was written. Needs root.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::fs::{self, File};
use std::process::Command;

use support::client::{self, Client};
use support::{MODES, RunningServer, are_installed, capture, fill, pattern};

const SIZE: u64 = 1 << 20;
const NOTSUP: u32 = 95;

/// Loop device, detached on drop.
struct LoopDevice(String);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_has_its_size_and_accepts_zeroes_of_partial_blocks() {
    if !are_installed(&["losetup"]) {
        return;
    }
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        File::create(&file).unwrap().set_len(SIZE).unwrap();
        fill(&file, 0, SIZE as usize);
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        if !made.status.success() {
            println!("skipped: {}", String::from_utf8_lossy(&made.stderr));
            return;
        }
        let device = LoopDevice(String::from_utf8(made.stdout).unwrap().trim().to_owned());
        let server = RunningServer::serve(device.0.as_ref(), mode);
        let mut client = Client::ready(&server.socket(), true);
        let whole = client.round_trip(client::READ, 0, 0, SIZE as u32);
        assert_eq!((whole.error, whole.data), (0, pattern(0, SIZE as usize)));
        assert_eq!(client.round_trip(client::READ, 0, SIZE - 1, 2).error, 22);
        // The blocks have 512 bytes: this range begins and ends inside a block.
        assert_eq!(client.round_trip(client::WRITE_ZEROES, 1, 511, 1_026).error, 0);
        assert_eq!(client.round_trip(client::WRITE_ZEROES, 1 << 4, 4_097, 5).error, NOTSUP);
        assert_eq!(client.round_trip(client::WRITE_ZEROES, 1 | 1 << 4, 8_192, 8_192).error, 0);
        assert_eq!(client.round_trip(client::TRIM, 0, 20_001, 3).error, 0);
        client.request(client::WRITE, 1, 1, 100_001, 3);
        client.send(b"abc");
        assert_eq!(client.reply(0).error, 0);
        assert_eq!(client.round_trip(client::FLUSH, 0, 0, 0).error, 0);
        // One extent of data: a block device reports no holes.
        let status = client.round_trip(client::BLOCK_STATUS, 0, 0, SIZE as u32).data;
        assert_eq!(status, [[0, 0, 0, 1], (SIZE as u32).to_be_bytes(), [0; 4]].concat());
        drop(client);
        server.stop();
        capture(Command::new("sync").arg(&device.0));
        let mut expected = pattern(0, SIZE as usize);
        expected[511..1_537].fill(0);
        expected[8_192..16_384].fill(0);
        expected[100_001..100_004].copy_from_slice(b"abc");
        assert!(fs::read(&file).unwrap() == expected);
    }
}
