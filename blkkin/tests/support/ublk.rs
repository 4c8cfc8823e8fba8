//! A disk whose driver is this process: ublk sends the disk's requests over an io_uring and
//! receives the results there (include/uapi/linux/ublk_cmd.h; Documentation/block/ublk.rst).
//!
//! *In*: the number of writes that are completed. *Out*: `/dev/ublkbN`, and the requests that it
//! received. *Invariant*: the disk is removed when dropped.

mod abi;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use self::abi::*;
use super::direct::BLOCK;
use super::live::eventually;

pub(crate) const READ: u8 = 0;
pub(crate) const WRITE: u8 = 1;
pub(crate) const FLUSH: u8 = 2;

const CONTROL: &str = "/dev/ublk-control";
/// Bytes of the disk.
const BYTES: usize = 16 << 20;
/// Commands that wait for a request, which limit the requests in flight.
const DEPTH: u16 = 8;
const BUFFER: usize = 64 << 10;
const COMMAND_TIMEOUT_S: u64 = 60;

/// Result of a waiting command when the device ends (UBLK_IO_RES_ABORT).
const ABORTED: i32 = -libc::ENODEV;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A received request: operation, first sector, number of sectors.
pub(crate) type UblkRequest = (u8, u64, u32);

/// The disk and its server.
pub(crate) struct Ublk {
    pub(crate) node: PathBuf,
    control: File,
    number: u32,
    requests: Arc<Mutex<Vec<UblkRequest>>>,
    server: Option<JoinHandle<()>>,
}

impl Ublk {
    /// Creates a disk whose server completes `writes_max` writes and ends at the next, or returns
    /// why it cannot.
    pub(crate) fn start(writes_max: u64) -> Result<Ublk, String> {
        let control = File::options().read(true).write(true).open(CONTROL);
        let control = control.map_err(|error| format!("{CONTROL}: {error}"))?;
        let mut info = Info {
            queues: 1,
            depth: DEPTH,
            buffer_bytes: BUFFER as u32,
            device: u32::MAX,
            ..Info::default()
        };
        let (address, length) = ((&raw mut info).addr() as u64, size_of::<Info>());
        control_command(&control, ADD, info.device, address, length, 0).unwrap();
        let number = info.device;
        assert_eq!(number, 0, "another ublk disk exists");
        let mut disk = Ublk {
            node: PathBuf::from(format!("/dev/ublkb{number}")),
            control,
            number,
            requests: Arc::default(),
            server: None,
        };
        let parameters = Parameters {
            length: size_of::<Parameters>() as u32,
            kinds: BASIC,
            attributes: VOLATILE_CACHE,
            shifts: [9, 12, 12, 12],
            sectors_max: (BUFFER / 512) as u32,
            chunk_sectors: 0,
            sectors: BYTES as u64 / 512,
            boundary: 0,
        };
        let address = (&raw const parameters).addr() as u64;
        control_command(&disk.control, SET_PARAMETERS, number, address, size_of::<Parameters>(), 0).unwrap();
        let (path, requests) = (format!("/dev/ublkc{number}"), Arc::clone(&disk.requests));
        assert!(eventually(|| Path::new(&path).exists()), "{path}");
        disk.server = Some(std::thread::spawn(move || serve(Path::new(&path), writes_max, &requests)));
        // Returns when the disk is there and its partitions have been scanned.
        control_command(&disk.control, START, number, 0, 0, u64::from(std::process::id())).unwrap();
        assert!(eventually(|| disk.node.exists()), "{}", disk.node.display());
        Ok(disk)
    }

    pub(crate) fn requests(&self) -> Vec<UblkRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Returns the name, `ublkbN`.
    pub(crate) fn name(&self) -> &str {
        self.node.file_name().unwrap().to_str().unwrap()
    }
}

impl Drop for Ublk {
    fn drop(&mut self) {
        // The device may have stopped before.
        let _ = control_command(&self.control, STOP, self.number, 0, 0, 0);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        let _ = control_command(&self.control, DELETE, self.number, 0, 0, 0);
    }
}

/// Sends one control command and returns its result.
fn control_command(
    control: &File,
    operation: u32,
    device: u32,
    address: u64,
    length: usize,
    data: u64,
) -> Result<(), io::Error> {
    let command = Control { device, queue: u16::MAX, length: length as u16, address, data, reserved: 0 };
    let mut ring = Ring::builder().build(2)?;
    push(&mut ring, control, operation, bytes(&command), 0);
    // If the server failed, the driver would wait for ever.
    let limit = types::Timespec::new().sec(COMMAND_TIMEOUT_S);
    let submitted = ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&limit));
    if let Err(error) = submitted
        && error.raw_os_error() != Some(libc::ETIME)
    {
        return Err(error);
    }
    let result = ring.completion().next().map_or(-libc::ETIME, |cqe| cqe.result());
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

fn push(ring: &mut Ring, file: &File, operation: u32, command: [u8; 80], tag: u64) {
    let entry = opcode::UringCmd80::new(types::Fd(file.as_raw_fd()), operation).cmd(command).build();
    // SAFETY: what a command points to outlives its completion.
    unsafe { ring.submission().push(&entry.user_data(tag)) }.unwrap();
}

fn bytes<T>(command: &T) -> [u8; 80] {
    let mut bytes = [0; 80];
    assert!(size_of::<T>() <= bytes.len());
    // SAFETY: copies a struct of integers without padding into a buffer that has room for it.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(command).cast(), bytes.as_mut_ptr(), size_of::<T>()) };
    bytes
}

/// Completes requests in memory until the device ends or `writes_max` writes were completed.
fn serve(path: &Path, writes_max: u64, requests: &Mutex<Vec<UblkRequest>>) {
    let device = File::options().read(true).write(true).open(path).unwrap();
    let descriptions = Descriptions::of(&device);
    let mut disk = vec![0_u8; BYTES];
    let mut buffers = vec![vec![0_u8; BUFFER]; usize::from(DEPTH)];
    let mut ring = Ring::builder().build(u32::from(DEPTH)).unwrap();
    for tag in 0..DEPTH {
        let address = buffers[usize::from(tag)].as_mut_ptr().addr() as u64;
        let command = Command { queue: 0, tag, result: 0, address };
        push(&mut ring, &device, FETCH, bytes(&command), tag.into());
    }
    let (mut fetching, mut writes) = (DEPTH, 0);
    while fetching > 0 {
        ring.submit_and_wait(1).unwrap();
        let completions: Vec<(u64, i32)> =
            ring.completion().map(|cqe| (cqe.user_data(), cqe.result())).collect();
        for (tag, result) in completions {
            if result != 0 {
                assert_eq!(result, ABORTED);
                fetching -= 1;
                continue;
            }
            let descriptor = descriptions.read(tag as usize);
            let operation = descriptor.operation as u8;
            requests.lock().unwrap().push((operation, descriptor.from, descriptor.sectors));
            writes += u64::from(operation == WRITE);
            if writes > writes_max {
                return;
            }
            let buffer = &mut buffers[tag as usize];
            let length = if operation == FLUSH { 0 } else { descriptor.sectors as usize * 512 };
            let from = if length == 0 { 0 } else { descriptor.from as usize * 512 };
            match operation {
                READ => buffer[..length].copy_from_slice(&disk[from..from + length]),
                WRITE => disk[from..from + length].copy_from_slice(&buffer[..length]),
                _ => {}
            }
            let address = buffer.as_mut_ptr().addr() as u64;
            let command = Command { queue: 0, tag: tag as u16, result: length as i32, address };
            push(&mut ring, &device, COMMIT_AND_FETCH, bytes(&command), tag);
        }
    }
}

const _: () = assert!(BUFFER >= BLOCK);

/// The driver's request descriptors by tag. A device is not removed while they are mapped.
struct Descriptions(*mut Description);

impl Descriptions {
    const BYTES: usize = DEPTH as usize * size_of::<Description>();

    fn of(device: &File) -> Descriptions {
        let (protection, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: creates a new mapping.
        let mapped =
            unsafe { libc::mmap(ptr::null_mut(), Self::BYTES, protection, shared, device.as_raw_fd(), 0) };
        assert_ne!(mapped, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Descriptions(mapped.cast())
    }

    fn read(&self, tag: usize) -> Description {
        assert!(tag < usize::from(DEPTH));
        // SAFETY: `tag` is in bounds, and the driver has filled the descriptor before it sent the
        // tag.
        unsafe { self.0.add(tag).read_volatile() }
    }
}

impl Drop for Descriptions {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and not read any more.
        unsafe { libc::munmap(self.0.cast(), Self::BYTES) };
    }
}
