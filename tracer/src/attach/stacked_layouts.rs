//! Pointer paths from a bio to the bio or request on whose behalf it was issued, per driver. The
//! only module that knows these drivers' structs; `stacked.rs` of the eBPF side follows the paths.
//!
//! *In*: BTF of the kernel and its modules. *Out*: offsets for each path. Empty if the kernel lacks
//! the driver, or if its module is not loaded: then none of its devices exists yet, and one that
//! appears later is not part of what is traced.
//!
//! Sources, by the function that ends the bio (Linux 6.12 unless noted):
//!
//! | ends in | source | path |
//! |---|---|---|
//! | `iomap_dio_bio_end_io` | fs/iomap/direct-io.c | `bi_private`, a `struct iomap_dio`, has the kiocb |
//! | `blkdev_bio_end_io` | block/fops.c | `bi_private`, a `struct blkdev_dio`, has the kiocb |
//! | `blkdev_bio_end_io_async` | block/fops.c | the bio is embedded in the `struct blkdev_dio` |
//! | `bio_cmd_bio_end_io` (6.12 and later) | block/ioctl.c | `bi_private` is the `struct io_uring_cmd` of a device's command, which begins where its request does, as a kiocb (`struct io_cmd_data`) |
//! | `clone_endio` | drivers/md/dm.c | the bio is embedded in a `struct dm_target_io`, whose `dm_io` has the original bio |
//! | `crypt_endio` | drivers/md/dm-crypt.c | `bi_private`, a `struct dm_crypt_io`, has the clone passed to crypt |
//! | `raid1_end_read_request`, `raid1_end_write_request` | drivers/md/raid1.c | `bi_private`, a `struct r1bio`, has the master bio |
//! | `raid10_end_read_request`, `raid10_end_write_request` | drivers/md/raid10.c | `bi_private`, a `struct r10bio`, has the master bio |
//! | `md_end_clone_io` (6.5 and later), `md_end_io_acct` (before) | drivers/md/md.c | `bi_private` has the bio that md cloned for accounting; raid0 submits that clone |

use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::settings::{POINTER_STEPS_MAX, PointerStep, STEP_TO_BIO, STEP_TO_KIOCB};

use crate::attach::btf::Btf;
use crate::attach::symbols::KernelSymbol;

/// A path as spelled in the kernel's source.
struct LayoutSpec {
    end_io: KernelSymbol,
    /// Member that embeds the bio, as `struct.member`; none if the path begins at `bi_private`.
    container: Option<&'static str>,
    /// Pointers to follow, as `struct.member`.
    pointers: [Option<&'static str>; 2],
    to: u32,
}

const fn to_bio(module: &'static str, name: &'static str, pointer: &'static str) -> LayoutSpec {
    let end_io = KernelSymbol { name, module: Some(module) };
    LayoutSpec { end_io, container: None, pointers: [Some(pointer), None], to: STEP_TO_BIO }
}

const fn to_kiocb(name: &'static str, container: Option<&'static str>, pointer: &'static str) -> LayoutSpec {
    let end_io = KernelSymbol { name, module: None };
    LayoutSpec { end_io, container, pointers: [Some(pointer), None], to: STEP_TO_KIOCB }
}

const LAYOUTS: &[LayoutSpec] = &[
    to_kiocb("iomap_dio_bio_end_io", None, "iomap_dio.iocb"),
    to_kiocb("blkdev_bio_end_io", None, "blkdev_dio.iocb"),
    to_kiocb("blkdev_bio_end_io_async", Some("blkdev_dio.bio"), "blkdev_dio.iocb"),
    LayoutSpec {
        end_io: KernelSymbol { name: "bio_cmd_bio_end_io", module: None },
        container: None,
        pointers: [None, None],
        to: STEP_TO_KIOCB,
    },
    LayoutSpec {
        end_io: KernelSymbol { name: "clone_endio", module: Some("dm_mod") },
        container: Some("dm_target_io.clone"),
        pointers: [Some("dm_target_io.io"), Some("dm_io.orig_bio")],
        to: STEP_TO_BIO,
    },
    to_bio("dm_crypt", "crypt_endio", "dm_crypt_io.base_bio"),
    to_bio("raid1", "raid1_end_read_request", "r1bio.master_bio"),
    to_bio("raid1", "raid1_end_write_request", "r1bio.master_bio"),
    to_bio("raid10", "raid10_end_read_request", "r10bio.master_bio"),
    to_bio("raid10", "raid10_end_write_request", "r10bio.master_bio"),
    to_bio("md_mod", "md_end_clone_io", "md_io_clone.orig_bio"),
    to_bio("md_mod", "md_end_io_acct", "md_io_acct.orig_bio"),
];

// A kernel has only one of md's two.
const _: () = assert!(LAYOUTS.len() - 1 <= POINTER_STEPS_MAX);

/// Path from a loop device's request to its file's kiocb. The driver's data follow the request
/// (blk_mq_rq_to_pdu, include/linux/blk-mq.h) and contain the kiocb (drivers/block/loop.c).
const LOOP_KIOCB: &str = "loop_cmd.iocb";

/// A path with this kernel's offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointerPath {
    /// Function that ends the driver's bios.
    pub(crate) end_io: KernelSymbol,
    /// Offsets, without the function's address.
    pub(crate) step: PointerStep,
}

/// Paths that this kernel has.
#[derive(Debug)]
pub(crate) struct StackedLayouts {
    pub(crate) paths: Vec<PointerPath>,
    /// Offset from a loop device's request to its kiocb; ABSENT if there is none.
    pub(crate) loop_kiocb: u32,
}

/// Lists the structs to look up in the kernel's BTF.
pub(crate) fn struct_names() -> impl Iterator<Item = &'static str> {
    LAYOUTS
        .iter()
        .flat_map(member_paths)
        .chain([LOOP_KIOCB])
        .filter_map(|spelling| Some(spelling.split_once('.')?.0))
}

fn member_paths(spec: &LayoutSpec) -> impl Iterator<Item = &'static str> + use<> {
    spec.container.into_iter().chain(spec.pointers.into_iter().flatten())
}

/// Resolves the paths in the kernel's BTF, or in that of a module.
pub(crate) fn resolve(kernel: &Btf<'_>, modules: &[Btf<'_>]) -> StackedLayouts {
    let offset = |spelling: &str| {
        kernel.offset(spelling).or_else(|| modules.iter().find_map(|module| module.offset(spelling)))
    };
    let paths = LAYOUTS.iter().filter_map(|spec| {
        let [first, second] = spec.pointers.map(|pointer| pointer.map_or(Some(ABSENT), offset));
        let container = spec.container.map_or(Some(ABSENT), offset)?;
        let step = PointerStep {
            end_io: 0,
            container_offset: container,
            first_offset: first?,
            second_offset: second?,
            to: spec.to,
        };
        Some(PointerPath { end_io: spec.end_io, step })
    });
    let loop_kiocb = offset(LOOP_KIOCB).zip(kernel.size("request"));
    StackedLayouts {
        paths: paths.collect(),
        loop_kiocb: loop_kiocb.map_or(ABSENT, |(within, request)| request + within),
    }
}
