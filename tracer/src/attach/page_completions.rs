//! Completion functions of bios that carry pages of a page cache. The eBPF side's `block/pages.rs`
//! uses them to find the file of the pages.
//!
//! *In*: addresses of kernel functions. *Out*: a [`PageCompletion`] for each that this kernel has.
//! *Invariant*: a function is in the list only if every bio that it ends carries pages of the named
//! kind. A bio that ends elsewhere has no origin, and none is guessed.
//!
//! Sources (Linux 6.18 unless noted):
//!
//! | function | source | bios |
//! |---|---|---|
//! | `ext4_end_bio` | fs/ext4/page-io.c | write-back |
//! | `mpage_end_io` | fs/ext4/readpage.c; before 6.3 also fs/mpage.c | reads |
//! | `mpage_read_end_io`, `mpage_write_end_io` | fs/mpage.c | ext2, fat, block devices |
//! | `iomap_read_end_io` | fs/iomap/buffered-io.c | reads of xfs |
//! | `iomap_writepage_end_bio`, since 6.17 `ioend_writeback_end_bio` | fs/iomap | write-back of xfs |
//! | `xfs_end_bio` | fs/xfs/xfs_aops.c | write-back of xfs that ends in a worker |
//! | `end_bio_bh_io_sync` | fs/buffer.c | buffer heads: metadata of ext4, pages of block devices |
//! | `f2fs_read_end_io`, `f2fs_write_end_io` | fs/f2fs/data.c | f2fs |
//! | `btrfs_simple_end_io`, `btrfs_orig_write_end_io`, `btrfs_raid56_end_io` | fs/btrfs/bio.c | all of btrfs |
//! | `btrfs_clone_write_end_io` | fs/btrfs/bio.c | copies of a write for other mirrors |
//! | `xfs_buf_bio_end_io` | fs/xfs/xfs_buf.c | metadata of xfs |
//! | `xlog_bio_end_io` | fs/xfs/xfs_log.c | log of xfs |
//! | `end_swap_bio_read`, `end_swap_bio_write` | mm/page_io.c | swap |

use blkkin_probe_abi::settings::{
    PAGE_COMPLETIONS_MAX, PAGES_ARE_LOG, PAGES_ARE_METADATA, PAGES_ARE_SWAP, PAGES_BY_BTRFS_BIO,
    PAGES_BY_BTRFS_COPY, PAGES_BY_MAPPING, PageCompletion,
};

use crate::attach::symbols::{KernelSymbol, Symbols};

const fn symbol(module: &'static str, name: &'static str) -> KernelSymbol {
    KernelSymbol { name, module: Some(module) }
}

/// Functions with the rule for their bios.
const COMPLETIONS: &[(KernelSymbol, u32)] = &[
    (symbol("ext4", "ext4_end_bio"), PAGES_BY_MAPPING),
    (symbol("ext4", "mpage_end_io"), PAGES_BY_MAPPING),
    (KernelSymbol { name: "mpage_read_end_io", module: None }, PAGES_BY_MAPPING),
    (KernelSymbol { name: "mpage_write_end_io", module: None }, PAGES_BY_MAPPING),
    (KernelSymbol { name: "iomap_read_end_io", module: None }, PAGES_BY_MAPPING),
    (KernelSymbol { name: "iomap_writepage_end_bio", module: None }, PAGES_BY_MAPPING),
    (KernelSymbol { name: "ioend_writeback_end_bio", module: None }, PAGES_BY_MAPPING),
    (symbol("xfs", "xfs_end_bio"), PAGES_BY_MAPPING),
    (KernelSymbol { name: "end_bio_bh_io_sync", module: None }, PAGES_BY_MAPPING),
    (symbol("f2fs", "f2fs_read_end_io"), PAGES_BY_MAPPING),
    (symbol("f2fs", "f2fs_write_end_io"), PAGES_BY_MAPPING),
    (symbol("btrfs", "btrfs_simple_end_io"), PAGES_BY_BTRFS_BIO),
    (symbol("btrfs", "btrfs_orig_write_end_io"), PAGES_BY_BTRFS_BIO),
    (symbol("btrfs", "btrfs_raid56_end_io"), PAGES_BY_BTRFS_BIO),
    (symbol("btrfs", "btrfs_clone_write_end_io"), PAGES_BY_BTRFS_COPY),
    (symbol("xfs", "xfs_buf_bio_end_io"), PAGES_ARE_METADATA),
    (symbol("xfs", "xlog_bio_end_io"), PAGES_ARE_LOG),
    (KernelSymbol { name: "end_swap_bio_read", module: None }, PAGES_ARE_SWAP),
    (KernelSymbol { name: "end_swap_bio_write", module: None }, PAGES_ARE_SWAP),
];

// Before 6.3, mpage_end_io is the name of two functions.
const _: () = assert!(COMPLETIONS.len() < PAGE_COMPLETIONS_MAX);

/// Function that ends direct I/O of btrfs, whose bios carry memory of a program.
pub(crate) const BTRFS_DIRECT: KernelSymbol = symbol("btrfs", "btrfs_dio_end_io");

/// Lists the functions to look up.
pub(crate) fn wanted() -> impl Iterator<Item = KernelSymbol> {
    COMPLETIONS.iter().map(|(symbol, _)| *symbol).chain([BTRFS_DIRECT])
}

/// Returns the functions that this kernel has.
pub(crate) fn resolve(symbols: &Symbols) -> [PageCompletion; PAGE_COMPLETIONS_MAX] {
    let mut completions = [PageCompletion::default(); PAGE_COMPLETIONS_MAX];
    let found = COMPLETIONS.iter().flat_map(|(symbol, rule)| {
        symbols.all(*symbol).iter().map(|end_io| PageCompletion { end_io: *end_io, rule: *rule, reserved: 0 })
    });
    for (slot, completion) in completions.iter_mut().zip(found) {
        *slot = completion;
    }
    completions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_two_files_counts_twice() {
        let symbols = Symbols::find_in(
            &b"ffffffff81000010 t mpage_end_io\n\
               ffffffff81000020 t mpage_end_io\n\
               ffffffff81000030 t mpage_end_io\t[other]\n\
               ffffffff81000040 t xlog_bio_end_io\t[xfs]\n"[..],
            &wanted().collect::<Vec<_>>(),
        );
        let found = resolve(&symbols).map(|completion| (completion.end_io & 0xff, completion.rule));
        let expected = [(0x10, PAGES_BY_MAPPING), (0x20, PAGES_BY_MAPPING), (0x40, PAGES_ARE_LOG), (0, 0)];
        assert_eq!(found[..4], expected);
    }
}
