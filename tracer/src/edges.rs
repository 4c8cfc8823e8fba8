//! The ways from a bio upwards, to the bio or the request that it does the work of: who made it, and where that wrote down for
//! whom. The one place that knows these drivers' structs; the eBPF side's `stacked.rs` walks.
//!
//! *In*: the kernel's types, and its modules'. *Out*: for each way the offsets to follow; empty where this kernel has no such
//! driver, or it is a module that is not loaded: then there is none of its devices yet, and one that comes
//! later is no layer of what is traced.
//!
//! Sources, by the function in which a bio ends (Linux 6.12 unless said):
//!
//! | ends in | of | the way |
//! |---|---|---|
//! | `iomap_dio_bio_end_io` | fs/iomap/direct-io.c | `bi_private`, a `struct iomap_dio`, has the kiocb |
//! | `blkdev_bio_end_io` | block/fops.c | `bi_private`, a `struct blkdev_dio`, has the kiocb |
//! | `blkdev_bio_end_io_async` | block/fops.c | the bio lies in the `struct blkdev_dio` |
//! | `clone_endio` | drivers/md/dm.c | the bio lies in a `struct dm_target_io`, whose `dm_io` has the bio that was asked for |
//! | `crypt_endio` | drivers/md/dm-crypt.c | `bi_private`, a `struct dm_crypt_io`, has the clone that crypt was given |
//! | `raid1_end_read_request`, `raid1_end_write_request` | drivers/md/raid1.c | `bi_private`, a `struct r1bio`, has the master bio |
//! | `raid10_end_read_request`, `raid10_end_write_request` | drivers/md/raid10.c | `bi_private`, a `struct r10bio`, has the master bio |
//! | `md_end_clone_io` (6.5 and later), `md_end_io_acct` (before) | drivers/md/md.c | `bi_private` has the bio that md cloned to count it; raid0 sends that clone on |

use std::collections::HashSet;
use std::fs;

use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::settings::{HOP_TO_BIO, HOP_TO_KIOCB, HOPS_MAX, Hop};

use crate::btf::Btf;
use crate::symbols::Function;

/// Where the kernel says the types of itself and of its modules.
const TYPES: &str = "/sys/kernel/btf";

/// A way, as the kernel's source has it.
struct Edge {
    end_io: Function,
    /// What lies around the bio, and the bio in it; else the way begins at `bi_private`.
    around: Option<&'static str>,
    /// Pointers to follow, as `struct.member`.
    pointers: [Option<&'static str>; 2],
    to: u32,
}

const fn of_bio(module: &'static str, name: &'static str, pointer: &'static str) -> Edge {
    let end_io = Function { name, module: Some(module) };
    Edge { end_io, around: None, pointers: [Some(pointer), None], to: HOP_TO_BIO }
}

const fn of_kiocb(name: &'static str, around: Option<&'static str>, pointer: &'static str) -> Edge {
    let end_io = Function { name, module: None };
    Edge { end_io, around, pointers: [Some(pointer), None], to: HOP_TO_KIOCB }
}

const EDGES: &[Edge] = &[
    of_kiocb("iomap_dio_bio_end_io", None, "iomap_dio.iocb"),
    of_kiocb("blkdev_bio_end_io", None, "blkdev_dio.iocb"),
    of_kiocb("blkdev_bio_end_io_async", Some("blkdev_dio.bio"), "blkdev_dio.iocb"),
    Edge {
        end_io: Function { name: "clone_endio", module: Some("dm_mod") },
        around: Some("dm_target_io.clone"),
        pointers: [Some("dm_target_io.io"), Some("dm_io.orig_bio")],
        to: HOP_TO_BIO,
    },
    of_bio("dm_crypt", "crypt_endio", "dm_crypt_io.base_bio"),
    of_bio("raid1", "raid1_end_read_request", "r1bio.master_bio"),
    of_bio("raid1", "raid1_end_write_request", "r1bio.master_bio"),
    of_bio("raid10", "raid10_end_read_request", "r10bio.master_bio"),
    of_bio("raid10", "raid10_end_write_request", "r10bio.master_bio"),
    of_bio("md_mod", "md_end_clone_io", "md_io_clone.orig_bio"),
    of_bio("md_mod", "md_end_io_acct", "md_io_acct.orig_bio"),
];

// Of md's two a kernel has one.
const _: () = assert!(EDGES.len() - 1 <= HOPS_MAX);

/// A loop device's part of a request, which lies behind it (blk_mq_rq_to_pdu, include/linux/blk-mq.h), and in that the kiocb
/// of its file (drivers/block/loop.c).
const LOOP: &str = "loop_cmd.iocb";

/// Whose types these are, where a driver is a module.
const MODULES: &[&str] = &["loop", "dm_mod", "dm_crypt", "md_mod", "raid1", "raid10"];

/// A way, as this kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The function in which its bios end.
    pub(crate) end_io: Function,
    /// The rest; without the function's address.
    pub(crate) hop: Hop,
}

/// All that this kernel has.
#[derive(Debug)]
pub(crate) struct Edges {
    pub(crate) ways: Vec<Way>,
    /// From a loop device's request to the kiocb in it; ABSENT for none.
    pub(crate) loop_kiocb: u32,
}

/// The structs to look for in the kernel's own types.
pub(crate) fn structs() -> impl Iterator<Item = &'static str> {
    EDGES.iter().flat_map(spellings).chain([LOOP]).filter_map(|spelling| Some(spelling.split_once('.')?.0))
}

fn spellings(edge: &Edge) -> impl Iterator<Item = &'static str> + use<> {
    edge.around.into_iter().chain(edge.pointers.into_iter().flatten())
}

/// What there is of them: in the kernel, where the driver is part of it; else in its module.
pub(crate) fn resolve(kernel: &Btf<'_>) -> Edges {
    let wanted: HashSet<&str> = structs().collect();
    let files: Vec<Vec<u8>> =
        MODULES.iter().filter_map(|module| fs::read(format!("{TYPES}/{module}")).ok()).collect();
    let modules: Vec<Btf<'_>> =
        files.iter().filter_map(|bytes| kernel.parse_module(bytes, |name| wanted.contains(name))).collect();
    let offset = |spelling: &str| {
        kernel.offset(spelling).or_else(|| modules.iter().find_map(|module| module.offset(spelling)))
    };
    let ways = EDGES.iter().filter_map(|edge| {
        let [first, second] = edge.pointers.map(|pointer| pointer.map_or(Some(ABSENT), offset));
        let around = edge.around.map_or(Some(ABSENT), offset)?;
        let hop = Hop { end_io: 0, around, first: first?, second: second?, to: edge.to };
        Some(Way { end_io: edge.end_io, hop })
    });
    let loop_kiocb = offset(LOOP).zip(kernel.size("request"));
    Edges {
        ways: ways.collect(),
        loop_kiocb: loop_kiocb.map_or(ABSENT, |(within, request)| request + within),
    }
}
