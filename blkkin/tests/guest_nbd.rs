//! A disk behind a network block device, with this test as the server. The trace must have exactly
//! the requests that the server received, and a server that stops must appear as one request that
//! failed after its time-out.
//!
//! *Input*: `/dev/nbd0` of the kernel over a Unix socket (guests only). The expected requests are
//! those that the server read, and the kernel's count in `/sys/block/nbd0/stat`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{RequestEvent, SyscallOutcome};

use crate::support::direct::{self, BLOCK};
use crate::support::disk::statistics;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::needs_guest;
use crate::support::recording::{Recording, record};
use crate::support::tools::device_number;

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

#[test]
fn recorded_requests_are_those_that_the_server_received() {
    needs_guest!();
    const WRITES: u64 = 60;
    let disk = Nbd::connect(u64::MAX);
    let before = statistics("nbd0");
    let received_before = disk.received().len();
    let node = disk.node.clone();
    let recording = recorded(GatedProcess::new(move || {
        let device = direct::open(&node);
        for block in 0..WRITES {
            direct::write_at(&device, block * 3 * BLOCK as u64).unwrap();
        }
        device.sync_all().unwrap();
        for block in 0..WRITES {
            direct::read_at(&device, block * 3 * BLOCK as u64).unwrap();
        }
        0
    }));
    recording.assert_complete();
    let mut received = disk.received().split_off(received_before);
    // Command numbers of the protocol for reads, writes and flushes: 0, 1, 3. A flush has no offset
    // and no length.
    let number = |request: &RequestEvent| match request.op.name_for(request.bytes) {
        "read" => (READ, request.sector.0 * 512, request.bytes),
        "write" => (WRITE, request.sector.0 * 512, request.bytes),
        "flush" => (3, 0, 0),
        other => panic!("{other}: {request:#?}"),
    };
    let mut requests: Vec<_> = recording.requests().map(number).collect();
    received.sort_unstable();
    requests.sort_unstable();
    assert_eq!(requests, received);
    assert_eq!(requests.len() as u64, 2 * WRITES + 1);
    let counted = statistics("nbd0").since(before);
    assert_eq!((counted.requests, counted.sectors), (2 * WRITES + 1, 2 * WRITES * BLOCK as u64 / 512));
    for request in recording.requests() {
        let call = recording.calls().find(|call| call.span == request.root).unwrap();
        let offset = request.sector.0 * 512;
        match call.call.name() {
            "fsync" => assert_eq!(request.bytes, 0, "{request:#?}"),
            _ => assert_eq!((call.args[3], request.bytes as usize), (offset, BLOCK), "{request:#?}"),
        }
    }
}

#[test]
fn a_request_to_a_stopped_server_fails_after_its_time_out() {
    needs_guest!();
    const SERVED: u64 = 5;
    let disk = Nbd::connect(SERVED);
    let node = disk.node.clone();
    let recording = recorded(GatedProcess::new(move || {
        let device = direct::open(&node);
        let failed = (0..=SERVED).map(|block| direct::write_at(&device, block * BLOCK as u64).is_err());
        // Only the last write fails.
        i32::from(failed.collect::<Vec<_>>() != [false, false, false, false, false, true])
    }));
    recording.assert_balanced();
    let requests: Vec<&RequestEvent> =
        recording.requests().filter(|request| request.device == disk.device()).collect();
    let (failed, done): (Vec<&RequestEvent>, Vec<&RequestEvent>) =
        requests.iter().partition(|request| !request.status.is_ok());
    let [failed] = failed[..] else { panic!("{failed:#?}") };
    assert_eq!((done.len() as u64, failed.status.name()), (SERVED, "I/O error"));
    let at_device = failed.complete.since(failed.issue.unwrap()).0;
    println!("{} ms at the device, with a time-out of {TIMEOUT_S} s", at_device / 1_000_000);
    assert!(at_device >= (TIMEOUT_S - 1) * 1_000_000_000, "{failed:#?}");
    let call = recording.calls().find(|call| call.span == failed.root).unwrap();
    let error = SyscallOutcome::Returned(-i64::from(libc::EIO));
    assert_eq!((call.call.name(), call.outcome, call.args[3]), ("pwrite64", error, SERVED * BLOCK as u64));
}

fn recorded(mut process: GatedProcess) -> Recording {
    record(&TracerConfig::default(), &mut [&mut process])
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
        device_number(&fs::read_to_string("/sys/block/nbd0/dev").unwrap())
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
