//! Storage-related ioctl requests, by name.
//!
//! Numbers are built as in the kernel's headers, from direction, type, number and size of the
//! argument (`include/uapi/asm-generic/ioctl.h`, the same on x86_64 and aarch64), so each line can
//! be compared with its header: `linux/fs.h`, `fiemap.h`, `loop.h`, `blkzoned.h`, `nvme_ioctl.h`,
//! `scsi/sg.h`, `asm-generic/ioctls.h`.
//!
//! A request number is only a convention between a program and one driver: another driver can use
//! the same number for another request. The names are correct for regular files, block devices and
//! terminals.

/// Returns the name of a request.
pub fn name(request: u32) -> Option<&'static str> {
    REQUESTS.iter().find(|(number, _)| *number == request).map(|(_, name)| *name)
}

/// Named requests, by header.
pub static REQUESTS: &[(u32, &str)] = &[
    (io(0x12, 93), "BLKROSET"),
    (io(0x12, 94), "BLKROGET"),
    (io(0x12, 95), "BLKRRPART"),
    (io(0x12, 96), "BLKGETSIZE"),
    (io(0x12, 97), "BLKFLSBUF"),
    (io(0x12, 98), "BLKRASET"),
    (io(0x12, 99), "BLKRAGET"),
    (io(0x12, 100), "BLKFRASET"),
    (io(0x12, 101), "BLKFRAGET"),
    (io(0x12, 103), "BLKSECTGET"),
    (io(0x12, 104), "BLKSSZGET"),
    (io(0x12, 105), "BLKPG"),
    (ior(0x12, 112, 8), "BLKBSZGET"),
    (iow(0x12, 113, 8), "BLKBSZSET"),
    (ior(0x12, 114, 8), "BLKGETSIZE64"),
    (iowr(0x12, 115, 72), "BLKTRACESETUP"),
    (io(0x12, 116), "BLKTRACESTART"),
    (io(0x12, 117), "BLKTRACESTOP"),
    (io(0x12, 118), "BLKTRACETEARDOWN"),
    (io(0x12, 119), "BLKDISCARD"),
    (io(0x12, 120), "BLKIOMIN"),
    (io(0x12, 121), "BLKIOOPT"),
    (io(0x12, 122), "BLKALIGNOFF"),
    (io(0x12, 123), "BLKPBSZGET"),
    (io(0x12, 124), "BLKDISCARDZEROES"),
    (io(0x12, 125), "BLKSECDISCARD"),
    (io(0x12, 126), "BLKROTATIONAL"),
    (io(0x12, 127), "BLKZEROOUT"),
    (ior(0x12, 128, 8), "BLKGETDISKSEQ"),
    (iowr(0x12, 130, 16), "BLKREPORTZONE"),
    (iow(0x12, 131, 16), "BLKRESETZONE"),
    (ior(0x12, 132, 4), "BLKGETZONESZ"),
    (ior(0x12, 133, 4), "BLKGETNRZONES"),
    (iow(0x12, 134, 16), "BLKOPENZONE"),
    (iow(0x12, 135, 16), "BLKCLOSEZONE"),
    (iow(0x12, 136, 16), "BLKFINISHZONE"),
    (io(0x00, 1), "FIBMAP"),
    (io(0x00, 2), "FIGETBSZ"),
    (iowr(b'X', 119, 4), "FIFREEZE"),
    (iowr(b'X', 120, 4), "FITHAW"),
    (iowr(b'X', 121, 24), "FITRIM"),
    (iow(0x94, 9, 4), "FICLONE"),
    (iow(0x94, 13, 32), "FICLONERANGE"),
    (iowr(0x94, 54, 24), "FIDEDUPERANGE"),
    (ior(b'f', 1, 8), "FS_IOC_GETFLAGS"),
    (iow(b'f', 2, 8), "FS_IOC_SETFLAGS"),
    (ior(b'v', 1, 8), "FS_IOC_GETVERSION"),
    (iow(b'v', 2, 8), "FS_IOC_SETVERSION"),
    (iowr(b'f', 11, 32), "FS_IOC_FIEMAP"),
    (ior(b'X', 31, 28), "FS_IOC_FSGETXATTR"),
    (iow(b'X', 32, 28), "FS_IOC_FSSETXATTR"),
    (ior(0x94, 49, 256), "FS_IOC_GETFSLABEL"),
    (iow(0x94, 50, 256), "FS_IOC_SETFSLABEL"),
    (io(0x4C, 0x00), "LOOP_SET_FD"),
    (io(0x4C, 0x01), "LOOP_CLR_FD"),
    (io(0x4C, 0x02), "LOOP_SET_STATUS"),
    (io(0x4C, 0x03), "LOOP_GET_STATUS"),
    (io(0x4C, 0x04), "LOOP_SET_STATUS64"),
    (io(0x4C, 0x05), "LOOP_GET_STATUS64"),
    (io(0x4C, 0x06), "LOOP_CHANGE_FD"),
    (io(0x4C, 0x07), "LOOP_SET_CAPACITY"),
    (io(0x4C, 0x08), "LOOP_SET_DIRECT_IO"),
    (io(0x4C, 0x09), "LOOP_SET_BLOCK_SIZE"),
    (io(0x4C, 0x0A), "LOOP_CONFIGURE"),
    (io(0x4C, 0x80), "LOOP_CTL_ADD"),
    (io(0x4C, 0x81), "LOOP_CTL_REMOVE"),
    (io(0x4C, 0x82), "LOOP_CTL_GET_FREE"),
    (io(b'N', 0x40), "NVME_IOCTL_ID"),
    (iowr(b'N', 0x41, 72), "NVME_IOCTL_ADMIN_CMD"),
    (iow(b'N', 0x42, 48), "NVME_IOCTL_SUBMIT_IO"),
    (iowr(b'N', 0x43, 72), "NVME_IOCTL_IO_CMD"),
    (io(0x22, 0x85), "SG_IO"),
    (io(0x54, 0x01), "TCGETS"),
    (io(0x54, 0x13), "TIOCGWINSZ"),
    (io(0x54, 0x1B), "FIONREAD"),
    (io(0x54, 0x21), "FIONBIO"),
    (io(0x54, 0x50), "FIONCLEX"),
    (io(0x54, 0x51), "FIOCLEX"),
];

/// Encodes a request without argument in memory, or with one that the number does not describe.
const fn io(kind: u8, number: u8) -> u32 {
    (kind as u32) << 8 | number as u32
}

/// Encodes a request where the program reads `bytes` that the kernel writes.
const fn ior(kind: u8, number: u8, bytes: u32) -> u32 {
    2 << 30 | bytes << 16 | io(kind, number)
}

/// Encodes a request where the program writes `bytes` that the kernel reads.
const fn iow(kind: u8, number: u8, bytes: u32) -> u32 {
    1 << 30 | bytes << 16 | io(kind, number)
}

/// Encodes a request that transfers `bytes` in both directions.
const fn iowr(kind: u8, number: u8, bytes: u32) -> u32 {
    3 << 30 | bytes << 16 | io(kind, number)
}
