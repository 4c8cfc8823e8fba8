//! View of an open file: its identity, position, and what its name depends on.
//!
//! *In*: a `struct file`. *Out*: a [`FileView`], and from it the identity with the current name.
//!
//! A file of a small descriptor table is typed, and plain loads read it (10 ns). Of a larger table
//! it is not: any process that a shell has started has one, since the shell's own descriptor 255
//! sizes the table. So the untyped view is as frequent, and reads each structure's head at once by
//! bpf_probe_read_kernel: five calls instead of nine.

use super::inode;
use super::name::{self, FileState};
use super::overlay;
use super::{FdLookup, lookup_fd};
use crate::runtime::layout::offset;
use crate::runtime::percpu::{HEAD_BYTES, PerCpuState};
use crate::runtime::read::{DirectLoad, KernelRead, Pointer, ProbeRead};
use crate::runtime::settings::setting;
use blkkin_probe_abi::record::FileId;

/// An open file: what is read of it before the record of its path is due.
pub struct FileView {
    /// Address of the `struct file`.
    pub address: u64,
    /// File position.
    pub position: i64,
    /// `f_flags`.
    pub flags: u32,
    /// Address of the inode; of a file of overlayfs, that of the layer with its data.
    pub inode: u64,
    /// File type: `S_IF*`.
    pub file_type: u16,
    /// Identity, without name.
    id: FileId,
    state: FileState,
}

impl FileView {
    /// Reads the file that a descriptor of the task names now.
    #[inline(always)]
    pub fn of_fd(percpu: &mut PerCpuState, task: Pointer, fd: u32) -> Option<FileView> {
        // SAFETY: each pointer is read by the way it was found.
        unsafe {
            match lookup_fd(task, fd) {
                FdLookup::Typed(file) => Some(FileView::typed(percpu, file)),
                FdLookup::Untyped(file) => Some(FileView::untyped(percpu, file)),
                FdLookup::Closed => None,
            }
        }
    }

    /// Reads a typed file.
    ///
    /// # Safety
    /// The verifier knows `file` as a `struct file`.
    #[inline(always)]
    pub unsafe fn typed(percpu: &mut PerCpuState, file: Pointer) -> FileView {
        // SAFETY: by the contract; pointers loaded through a typed one are typed.
        unsafe {
            let inode: Pointer = DirectLoad::read(file, offset!(file_inode));
            let id = inode::identity::<DirectLoad>(inode);
            let file_type = inode::file_type::<DirectLoad>(inode);
            let magic = match overlay::is_possible(id.dev, file_type) {
                true => {
                    DirectLoad::read(DirectLoad::read::<Pointer>(inode, offset!(inode_sb)), offset!(sb_magic))
                }
                false => 0,
            };
            let (address, inode) = (percpu.address(file), percpu.address(inode));
            let (id, inode) = of_data(address, (id, inode), file_type, magic);
            let dentry: Pointer = DirectLoad::read(file, offset!(file_dentry));
            // d_name.hash_len in two parts: the verifier of Linux 6.1 knows only one member of a union.
            let hash: u32 = DirectLoad::read(dentry, offset!(dentry_name));
            let length: u32 = DirectLoad::read(dentry, offset!(dentry_name) + 4);
            let name_hash = (length as u64) << 32 | hash as u64;
            let sequence = DirectLoad::read(dentry, offset!(dentry_seq));
            let mount: Pointer = DirectLoad::read(file, offset!(file_mnt));
            let (dentry, mount) = (percpu.address(dentry), percpu.address(mount));
            let state = FileState::new(&id, dentry, mount, name_hash, sequence);
            let position = DirectLoad::read(file, offset!(file_pos));
            let flags = DirectLoad::read(file, offset!(file_flags));
            FileView { address, position, flags, inode, file_type, id, state }
        }
    }

    /// Reads a file at any address.
    #[inline(always)]
    pub fn untyped(percpu: &mut PerCpuState, file: Pointer) -> FileView {
        percpu.read_head(file);
        let inode = field(percpu, file, offset!(file_inode)) as Pointer;
        let dentry = field(percpu, file, offset!(file_dentry));
        let mount = field(percpu, file, offset!(file_mnt));
        let position = field(percpu, file, offset!(file_pos)) as i64;
        let flags = field(percpu, file, offset!(file_flags)) as u32;
        percpu.read_head(inode);
        let sb = field(percpu, inode, offset!(inode_sb)) as Pointer;
        let ino = field(percpu, inode, offset!(inode_ino));
        let file_type = field(percpu, inode, offset!(inode_mode)) as u16 & inode::S_IFMT;
        let generation = percpu.read(inode, offset!(inode_generation)) as u32;
        let dev = percpu.read(sb, offset!(sb_dev)) as u32;
        let magic = match overlay::is_possible(dev, file_type) {
            true => percpu.read(sb, offset!(sb_magic)),
            false => 0,
        };
        percpu.read_head(dentry as Pointer);
        let name_hash = field(percpu, dentry as Pointer, offset!(dentry_name));
        let sequence = field(percpu, dentry as Pointer, offset!(dentry_seq)) as u32;
        let id = FileId { dev, generation, ino, name: 0 };
        let (id, inode) = of_data(file as u64, (id, inode as u64), file_type, magic);
        let state = FileState::new(&id, dentry, mount, name_hash, sequence);
        FileView { address: file as u64, position, flags, inode, file_type, id, state }
    }

    /// Returns the identity with the file's current name. Emits the path under that name before the
    /// first use. The record has time `now`, or the clock's if that is 0: a system call that opens
    /// a file must not end before its file has a name.
    #[inline(always)]
    pub fn named(self, percpu: &mut PerCpuState, now: u64) -> FileId {
        let FileView { address, inode, id, state, .. } = self;
        if setting!(file_paths) == 0 {
            return id;
        }
        FileId { name: name::current(percpu, (address, inode), state, now), ..id }
    }

    /// Returns the identity with the file's current name, if that is known. Otherwise the slot's
    /// `naming` has the file: for a caller whose own caller has more stack for [`name::name_file`].
    #[inline(always)]
    pub fn known(self, percpu: &mut PerCpuState) -> FileId {
        let FileView { address, inode, id, state, .. } = self;
        if setting!(file_paths) == 0 {
            return id;
        }
        FileId { name: name::known_or_noted(percpu, (address, inode), state, 0).unwrap_or(0), ..id }
    }
}

/// Returns identity and inode of the data of a file, which are its own unless it is of overlayfs.
#[inline(always)]
fn of_data(file: u64, (id, inode): (FileId, u64), file_type: u16, magic: u64) -> (FileId, u64) {
    if magic != overlay::MAGIC {
        return (id, inode);
    }
    let data = overlay::overlay_data_inode(file, inode, file_type as u64);
    // SAFETY: bpf_probe_read_kernel takes any address.
    (unsafe { inode::identity::<ProbeRead>(data as Pointer) }, data)
}

/// Returns the word at this offset of the structure whose head was read last. A field behind the
/// head is read separately.
#[inline(always)]
fn field(percpu: &mut PerCpuState, base: Pointer, offset: u32) -> u64 {
    if offset as usize + size_of::<u64>() <= HEAD_BYTES {
        percpu.head_word(offset)
    } else {
        percpu.read(base, offset)
    }
}
