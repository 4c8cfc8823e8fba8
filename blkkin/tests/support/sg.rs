//! Commands to a SCSI disk, past the block layer's bios: by SG_IO, and by what `/dev/sg` is written
//! (include/scsi/sg.h, version 3 of the interface).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use super::direct::Block;

const SG_IO: u32 = 0x2285;
const TIMEOUT_MS: u32 = 5_000;
/// Bytes of a logical block.
pub(crate) const SECTOR: usize = 512;

/// struct sg_io_hdr.
#[repr(C)]
struct Header {
    interface: i32,
    direction: i32,
    command_length: u8,
    sense_length: u8,
    vectors: u16,
    length: u32,
    data: *mut u8,
    command: *const u8,
    sense: *mut u8,
    timeout: u32,
    flags: u32,
    id: i32,
    user: *mut u8,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_written: u8,
    host_status: u16,
    driver_status: u16,
    residue: i32,
    duration: u32,
    info: u32,
}

const _: () = assert!(size_of::<Header>() == 88);

/// Which way its data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    None = -1,
    Out = -2,
    In = -3,
}

/// A command: its bytes, and how much data it moves.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    bytes: Vec<u8>,
    pub(crate) way: Way,
    pub(crate) length: usize,
}

impl Command {
    /// Is it there?
    pub(crate) fn test_unit_ready() -> Command {
        Command { bytes: vec![0; 6], way: Way::None, length: 0 }
    }

    /// Who is it?
    pub(crate) fn inquiry() -> Command {
        Command { bytes: vec![0x12, 0, 0, 0, 96, 0], way: Way::In, length: 96 }
    }

    /// READ(10) of so many blocks.
    pub(crate) fn read(block: u32, blocks: u16) -> Command {
        Command { bytes: ten(0x28, block, blocks), way: Way::In, length: usize::from(blocks) * SECTOR }
    }

    /// WRITE(10) of so many blocks.
    pub(crate) fn write(block: u32, blocks: u16) -> Command {
        Command { bytes: ten(0x2a, block, blocks), way: Way::Out, length: usize::from(blocks) * SECTOR }
    }

    /// Sends it by an ioctl, and waits; its data is taken from `data` or put there.
    pub(crate) fn send(&self, device: &File, data: &mut Block) -> io::Result<()> {
        let mut sense = [0; 32];
        let mut header = self.header(data, &mut sense);
        // SAFETY: what the header points to outlives the call.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), SG_IO as libc::Ioctl, &raw mut header) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        good(&header)
    }

    /// Hands it to `/dev/sg` by a write, and fetches what became of it by a read.
    pub(crate) fn send_by_write(&self, device: &File, data: &mut Block) -> io::Result<()> {
        let mut sense = [0; 32];
        let mut header = self.header(data, &mut sense);
        let fd = device.as_raw_fd();
        // SAFETY: what the header points to outlives both calls.
        let done = unsafe {
            libc::write(fd, (&raw const header).cast(), size_of::<Header>()) == size_of::<Header>() as isize
                && libc::read(fd, (&raw mut header).cast(), size_of::<Header>())
                    == size_of::<Header>() as isize
        };
        if !done {
            return Err(io::Error::last_os_error());
        }
        good(&header)
    }

    fn header(&self, data: &mut Block, sense: &mut [u8; 32]) -> Header {
        assert!(self.length <= data.0.len());
        Header {
            interface: 'S' as i32,
            direction: self.way as i32,
            command_length: self.bytes.len() as u8,
            sense_length: sense.len() as u8,
            vectors: 0,
            length: self.length as u32,
            data: if self.length == 0 { ptr::null_mut() } else { data.0.as_mut_ptr() },
            command: self.bytes.as_ptr(),
            sense: sense.as_mut_ptr(),
            timeout: TIMEOUT_MS,
            flags: 0,
            id: 0,
            user: ptr::null_mut(),
            status: 0,
            masked_status: 0,
            message_status: 0,
            sense_written: 0,
            host_status: 0,
            driver_status: 0,
            residue: 0,
            duration: 0,
            info: 0,
        }
    }
}

fn ten(code: u8, block: u32, blocks: u16) -> Vec<u8> {
    let ([a, b, c, d], [high, low]) = (block.to_be_bytes(), blocks.to_be_bytes());
    vec![code, 0, a, b, c, d, 0, high, low, 0]
}

fn good(header: &Header) -> io::Result<()> {
    let said = (header.status, header.host_status, header.driver_status);
    if said == (0, 0, 0) { Ok(()) } else { Err(io::Error::other(format!("{said:x?}"))) }
}
