//! A disk behind a network block device, with this test as the server. The trace must have exactly
//! the requests that the server received, and a server that stops must appear as one request that
//! failed after its time-out.
//!
//! *Input*: `/dev/nbd0` of the kernel over a Unix socket (guests only). The expected requests are
//! those that the server read, and the kernel's count in `/sys/block/nbd0/stat`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::support::direct::BLOCK;
use crate::support::disk::statistics;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::needs_guest;
use crate::support::recording::record_one;
use crate::support::served_disk::{
    SERVED, assert_received, failed_request, write_and_read, write_until_failure,
};
use crate::support::tools::block_device;

const BLOCKS: u64 = 4_096;
const TIMEOUT_S: u64 = 2;

/// include/uapi/linux/nbd.h.
const SET_SOCK: libc::c_ulong = 0xab00;
const SET_BLKSIZE: libc::c_ulong = 0xab01;
const DO_IT: libc::c_ulong = 0xab03;
const SET_SIZE_BLOCKS: libc::c_ulong = 0xab07;
const DISCONNECT: libc::c_ulong = 0xab08;
const SET_TIMEOUT: libc::c_ulong = 0xab09;
const SET_FLAGS: libc::c_ulong = 0xab0a;
const HAS_FLAGS_AND_FLUSH: u64 = 1 | 1 << 2;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u32 = 0;
const WRITE: u32 = 1;
const END: u32 = 2;
const FLUSH: u32 = 3;

#[test]
fn recorded_requests_are_those_that_the_server_received() {
    needs_guest!();
    let disk = Nbd::connect(u64::MAX);
    let before = statistics("nbd0");
    let received_before = disk.received().len();
    let node = disk.node.clone();
    let recording = record_one(&mut GatedProcess::new(move || write_and_read(&node)));
    recording.assert_complete();
    let received = disk.received().split_off(received_before);
    assert_received(&recording, [READ, WRITE, FLUSH], 1, received, statistics("nbd0").since(before));
}

#[test]
fn a_request_to_a_stopped_server_fails_after_its_time_out() {
    needs_guest!();
    let disk = Nbd::connect(SERVED);
    let node = disk.node.clone();
    let recording = record_one(&mut GatedProcess::new(move || write_until_failure(&node)));
    recording.assert_balanced();
    let failed = failed_request(&recording, disk.device());
    let at_device = failed.complete.since(failed.issue.unwrap()).0;
    println!("{} ms at the device, with a time-out of {TIMEOUT_S} s", at_device / 1_000_000);
    assert!(at_device >= (TIMEOUT_S - 1) * 1_000_000_000, "{failed:#?}");
}

/// Request of a client: the protocol's command, offset and length in bytes.
type NbdRequest = (u32, u64, u32);

/// `/dev/nbd0` and its server; disconnected on drop.
struct Nbd {
    node: PathBuf,
    device: File,
    received: Arc<Mutex<Vec<NbdRequest>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Nbd {
    /// Connects a disk whose server answers only this many writes.
    fn connect(answers: u64) -> Nbd {
        let node = PathBuf::from("/dev/nbd0");
        let device = File::options().read(true).write(true).open(&node).unwrap();
        let (client, server) = UnixStream::pair().unwrap();
        let set = |what, value: u64| {
            // SAFETY: numbers only.
            let done = unsafe { libc::ioctl(device.as_raw_fd(), what, value) };
            assert_eq!(done, 0, "{what:#x}: {}", std::io::Error::last_os_error());
        };
        set(SET_BLKSIZE, BLOCK as u64);
        set(SET_SIZE_BLOCKS, BLOCKS);
        set(SET_FLAGS, HAS_FLAGS_AND_FLUSH);
        set(SET_TIMEOUT, TIMEOUT_S);
        set(SET_SOCK, client.as_raw_fd() as u64);
        let received = Arc::new(Mutex::new(Vec::new()));
        let (received_by_server, device_of_driver) = (Arc::clone(&received), device.try_clone().unwrap());
        let server_thread = std::thread::spawn(move || serve(server, answers, &received_by_server));
        let driver_thread = std::thread::spawn(move || {
            // Returns when the disk is disconnected or its server is lost; both happen here.
            // SAFETY: no argument.
            unsafe { libc::ioctl(device_of_driver.as_raw_fd(), DO_IT, 0) };
            drop(client);
        });
        let disk = Nbd { node, device, received, threads: vec![server_thread, driver_thread] };
        assert!(eventually(|| Path::new("/sys/block/nbd0/pid").exists()), "not connected");
        disk
    }

    fn received(&self) -> Vec<NbdRequest> {
        self.received.lock().unwrap().clone()
    }

    fn device(&self) -> blkkin_wire::ids::DeviceId {
        block_device("nbd0")
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        // SAFETY: no argument. The disk may be disconnected already.
        unsafe { libc::ioctl(self.device.as_raw_fd(), DISCONNECT, 0) };
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Reads requests and answers them until the limit, with the protocol's simple replies
/// (github.com/NetworkBlockDevice/nbd, doc/proto.md, "Simple reply message").
fn serve(mut socket: UnixStream, answers: u64, received: &Mutex<Vec<NbdRequest>>) {
    let mut writes = 0;
    let mut header = [0; 28];
    while socket.read_exact(&mut header).is_ok() {
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), REQUEST_MAGIC);
        let (command, length) = (word(4) & 0xffff, word(24));
        let from = u64::from_be_bytes(header[16..24].try_into().unwrap());
        if command == END {
            return;
        }
        let mut data = vec![0; length as usize];
        if command == WRITE {
            socket.read_exact(&mut data).unwrap();
            writes += 1;
        }
        received.lock().unwrap().push((command, from, length));
        if writes > answers {
            continue;
        }
        let mut reply = REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend([0; 4]);
        reply.extend(&header[8..16]);
        if command == READ {
            reply.extend(data);
        }
        if socket.write_all(&reply).is_err() {
            return;
        }
    }
}
