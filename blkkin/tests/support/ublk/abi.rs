//! The interface between a ublk driver and its server (include/uapi/linux/ublk_cmd.h).

/// `_IOWR('u', number, struct ublksrv_ctrl_cmd)`, 32 bytes.
const fn control(number: u32) -> u32 {
    0xc020_7500 | number
}
pub(super) const ADD: u32 = control(4);
pub(super) const DELETE: u32 = control(5);
pub(super) const START: u32 = control(6);
pub(super) const STOP: u32 = control(7);
pub(super) const SET_PARAMETERS: u32 = control(8);
/// `_IOWR('u', number, struct ublksrv_io_cmd)`, 16 bytes.
pub(super) const FETCH: u32 = 0xc010_7520;
pub(super) const COMMIT_AND_FETCH: u32 = 0xc010_7521;

pub(super) const BASIC: u32 = 1;
pub(super) const VOLATILE_CACHE: u32 = 1 << 2;

/// struct ublksrv_ctrl_cmd.
#[repr(C)]
pub(super) struct Control {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) length: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) reserved: u64,
}

/// struct ublksrv_ctrl_dev_info.
#[repr(C)]
#[derive(Default)]
pub(super) struct Info {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) pad: u16,
    pub(super) buffer_bytes: u32,
    pub(super) device: u32,
    pub(super) pid: i32,
    pub(super) pad_too: u32,
    pub(super) flags: [u64; 2],
    pub(super) owner: [u32; 2],
    pub(super) reserved: [u64; 2],
}

/// struct ublk_params, up to its basic ones.
#[repr(C)]
pub(super) struct Parameters {
    pub(super) length: u32,
    pub(super) kinds: u32,
    pub(super) attributes: u32,
    /// log2 of four sizes: logical block, physical block, optimal I/O and minimal I/O.
    pub(super) shifts: [u8; 4],
    pub(super) sectors_max: u32,
    pub(super) chunk_sectors: u32,
    pub(super) sectors: u64,
    pub(super) boundary: u64,
}

/// struct ublksrv_io_cmd.
#[repr(C)]
pub(super) struct Command {
    pub(super) queue: u16,
    pub(super) tag: u16,
    pub(super) result: i32,
    pub(super) address: u64,
}

/// struct ublksrv_io_desc: one request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Description {
    pub(super) operation: u32,
    pub(super) sectors: u32,
    pub(super) from: u64,
    pub(super) address: u64,
}

const _: () = assert!(size_of::<Control>() == 32 && size_of::<Info>() == 64);
const _: () = assert!(size_of::<Parameters>() == 40 && size_of::<Command>() == 16);
const _: () = assert!(size_of::<Description>() == 24);
