//! SCSI passthrough commands to a disk, which have no bios: by SG_IO and by writes to `/dev/sg`
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

/// Direction of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    None = -1,
    Out = -2,
    In = -3,
}

/// A command: its bytes, and the direction and length of its data.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    bytes: Vec<u8>,
    pub(crate) direction: Direction,
    pub(crate) length: usize,
}

impl Command {
    /// Returns TEST UNIT READY.
    pub(crate) fn test_unit_ready() -> Command {
        Command { bytes: vec![0; 6], direction: Direction::None, length: 0 }
    }

    /// Returns INQUIRY.
    pub(crate) fn inquiry() -> Command {
        Command { bytes: vec![0x12, 0, 0, 0, 96, 0], direction: Direction::In, length: 96 }
    }

    /// Returns READ(10) of `blocks` blocks.
    pub(crate) fn read(block: u32, blocks: u16) -> Command {
        Command {
            bytes: ten_byte_command(0x28, block, blocks),
            direction: Direction::In,
            length: usize::from(blocks) * SECTOR,
        }
    }

    /// Returns WRITE(10) of `blocks` blocks.
    pub(crate) fn write(block: u32, blocks: u16) -> Command {
        Command {
            bytes: ten_byte_command(0x2a, block, blocks),
            direction: Direction::Out,
            length: usize::from(blocks) * SECTOR,
        }
    }

    /// Sends the command by SG_IO and waits; its data is read from or written to `data`.
    pub(crate) fn send(&self, device: &File, data: &mut Block) -> io::Result<()> {
        let mut sense = [0; 32];
        let mut header = self.header(data, &mut sense);
        // SAFETY: what the header points to outlives the call.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), SG_IO as libc::Ioctl, &raw mut header) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        check_status(&header)
    }

    /// Writes the command to `/dev/sg` and reads its result there.
    pub(crate) fn send_by_write(&self, device: &File, data: &mut Block) -> io::Result<()> {
        let mut sense = [0; 32];
        let mut header = self.header(data, &mut sense);
        let fd = device.as_raw_fd();
        // SAFETY: what the header points to outlives both calls.
        let result = unsafe {
            libc::write(fd, (&raw const header).cast(), size_of::<Header>()) == size_of::<Header>() as isize
                && libc::read(fd, (&raw mut header).cast(), size_of::<Header>())
                    == size_of::<Header>() as isize
        };
        if !result {
            return Err(io::Error::last_os_error());
        }
        check_status(&header)
    }

    fn header(&self, data: &mut Block, sense: &mut [u8; 32]) -> Header {
        assert!(self.length <= data.0.len());
        Header {
            interface: 'S' as i32,
            direction: self.direction as i32,
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

fn ten_byte_command(code: u8, block: u32, blocks: u16) -> Vec<u8> {
    let ([a, b, c, d], [high, low]) = (block.to_be_bytes(), blocks.to_be_bytes());
    vec![code, 0, a, b, c, d, 0, high, low, 0]
}

fn check_status(header: &Header) -> io::Result<()> {
    let status = (header.status, header.host_status, header.driver_status);
    if status == (0, 0, 0) { Ok(()) } else { Err(io::Error::other(format!("{status:x?}"))) }
}
