//! Virtual machines that QEMU runs on this machine, and their disk images.
//!
//! *In*: /proc. *Out*: a [`Machine`] for each QEMU process, and an [`Image`] for each image file or
//! block device that it has open. Modules in order of use: `machines` finds the
//! processes, `open_files` lists what a process has open, `block_options` reads from the command
//! line how QEMU uses it, `option_list` parses one argument, and `backing` finds backing files by the headers of the
//! images above them (`qcow2`).
//!
//! *Invariant*: which images are open, and whether they bypass the page cache, is the kernel's word.
//! The command line adds names and modes, and only to a file that it names: a disk that was attached
//! later is listed without them. So no image is listed that the process does not have open.
//!
//! *Hostile input*: a process can choose its command line, and can call itself QEMU. It then lists
//! images of its own; it cannot change those of another process. Text is untrusted for a terminal.
//!
//! *Rejected*: only the command line (it lacks disks that were attached later, and keeps those that
//! were detached); QMP as the only source (its socket accepts one client, usually libvirt).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod backing;
mod block_options;
#[cfg(fuzzing)]
pub mod fuzzing;
mod image;
mod machines;
mod nbd_server;
mod open_files;
mod option_list;
mod qcow2;

pub use block_options::{Aio, CacheMode, ImageOptions};
pub use image::{Image, Naming};
pub use machines::{
    Machine, NbdDrive, images_of, is_qemu_program, machine_of, machine_of_qemu, machines, nbd_drives_of,
    processes,
};
pub use nbd_server::NbdServer;
pub use open_files::{FileIdentity, OpenFile};
pub use qcow2::{BackingName, Qcow2Header};
