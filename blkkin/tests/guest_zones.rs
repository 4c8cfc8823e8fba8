//! Zoned devices: zone operations have their own op, and an append to a zone is a child of the call
//! that wrote.
//!
//! *Input*: a zoned null_blk, made by `xtask/src/vm/init.sh`, with zone ioctls and zonefs (guests
//! only). The expected ops and sectors are those that the test requests.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::support::direct::{self, BLOCK, Block};
use crate::support::guest::{ioctl, node, recorded, traces};
use crate::support::needs_guest;
use crate::support::tools::{capture, kernel, tool};

/// `_IOW(0x12, 131, struct blk_zone_range)` and the following ioctls
/// (include/uapi/linux/blkzoned.h).
const RESET: u32 = 0x4010_1283;
const OPEN: u32 = 0x4010_1286;
const CLOSE: u32 = 0x4010_1287;
const FINISH: u32 = 0x4010_1288;
/// Sectors of a zone, as `init.sh` made it; there are 16 zones.
const ZONE: u64 = 4 << 11;
const ZONES: u64 = 16;

/// The numbers of these ops differ between kernels.
#[test]
fn zone_operations_have_their_own_op() {
    needs_guest!();
    let operations: [(u32, [u64; 2], &str); 5] = [
        (OPEN, [ZONE, ZONE], "zone-open"),
        (CLOSE, [ZONE, ZONE], "zone-close"),
        (FINISH, [2 * ZONE, ZONE], "zone-finish"),
        (RESET, [2 * ZONE, ZONE], "zone-reset"),
        (RESET, [0, ZONES * ZONE], "zone-reset-all"),
    ];
    let target = node();
    empty_all();
    let recording = recorded(move || {
        let device = direct::open(&target);
        // Closing a zone without data makes it empty, and an empty zone is not reset.
        let written =
            [ZONE, 2 * ZONE].into_iter().all(|sector| direct::write_at(&device, sector * 512).is_ok());
        i32::from(!written || operations.iter().any(|(request, range, _)| !ioctl(&device, *request, range)))
    });
    let traces = traces(&recording, "ioctl");
    assert_eq!(traces.len(), operations.len());
    for ((_, [sector, _], name), trace) in operations.into_iter().zip(traces) {
        let ([bio], [request]) = (&trace.bios[..], &trace.requests[..]) else { panic!("{name}: {trace:#?}") };
        assert_eq!([bio.op.name(), request.op.name()], [name, name], "{trace:#?}");
        if name != "zone-reset-all" {
            assert_eq!((bio.sector.0, request.sector.0), (sector, sector), "{trace:#?}");
        }
    }
}

const APPENDS: u64 = 30;

/// zonefs sends synchronous direct writes as appends, and since 16d7fd3cfa72 (6.6, "zonefs: use
/// iomap for synchronous direct writes") as writes.
#[test]
fn an_append_to_a_zone_has_its_own_op() {
    needs_guest!();
    let file = Zonefs::mount();
    let target = file.sequential();
    let recording = recorded(move || {
        let file = direct::open(&target);
        for block in 0..APPENDS {
            if let Err(error) = direct::write_at(&file, block * BLOCK as u64) {
                // 6.1.192 takes its own appends for misplaced, and zonefs repairs the file's size
                // from the zone.
                assert_eq!((error.raw_os_error(), kernel()), (Some(libc::EIO), (6, 1)));
            }
        }
        0
    });
    let name = if kernel() < (6, 6) { "zone-append" } else { "write" };
    let traces = traces(&recording, "pwrite64");
    assert_eq!(traces.len() as u64, APPENDS);
    for (block, trace) in (0..).zip(traces) {
        let ([bio], [request]) = (&trace.bios[..], &trace.requests[..]) else { panic!("{trace:#?}") };
        assert_eq!([bio.op.name(), request.op.name()], [name, name], "{trace:#?}");
        assert_eq!((bio.bytes as usize, request.bytes as usize), (BLOCK, BLOCK), "{trace:#?}");
        assert_eq!((bio.status.name(), request.status.name()), ("ok", "ok"), "{trace:#?}");
        // An append names only the zone; the device chooses the sector in it.
        let sector = if name == "write" { ZONE + block * (BLOCK as u64 / 512) } else { ZONE };
        assert_eq!((bio.sector.0, request.sector.0), (sector, sector), "{trace:#?}");
    }
    assert_eq!(fs::metadata(file.sequential()).unwrap().len(), APPENDS * BLOCK as u64);
    println!("{APPENDS} x {name}");
}

/// zonefs on the disk; unmounted when dropped.
struct Zonefs(PathBuf);

impl Zonefs {
    fn mount() -> Zonefs {
        let device = empty_all();
        device.write_all_at(&super_block().0, 0).unwrap();
        let mount_point = PathBuf::from("/tmp/zonefs");
        fs::create_dir_all(&mount_point).unwrap();
        capture(tool("mount").args(["-t", "zonefs", "-o", "errors=repair"]).arg(node()).arg(&mount_point))
            .unwrap();
        Zonefs(mount_point)
    }

    /// Returns the path of the zone after the one with the super block.
    fn sequential(&self) -> PathBuf {
        self.0.join("seq/0")
    }
}

impl Drop for Zonefs {
    fn drop(&mut self) {
        let _ = capture(tool("umount").arg(&self.0)).inspect_err(|error| println!("{error}"));
    }
}

/// Builds a `struct zonefs_super` (fs/zonefs/zonefs.h): magic number, checksum, and default
/// options.
fn super_block() -> Block {
    const PERMISSIONS_AT: usize = 4 + 4 + 64 + 16 + 8 + 4 + 4;
    let mut block = Block([0; BLOCK]);
    block.0[..4].copy_from_slice(&0x5a4f_4653_u32.to_le_bytes());
    block.0[PERMISSIONS_AT..PERMISSIONS_AT + 4].copy_from_slice(&0o640_u32.to_le_bytes());
    let sum = crc32(&block.0);
    block.0[4..8].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Computes the kernel's `crc32(~0, …)`, which omits the final inversion.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |sum: u32, _| sum >> 1 ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
    bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), bit))
}

/// Opens the disk and empties all of its zones.
fn empty_all() -> File {
    let device = direct::open(&node());
    assert!(ioctl(&device, RESET, &[0, ZONES * ZONE]));
    device
}
