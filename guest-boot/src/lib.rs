//! Guests with stock kernels that QEMU emulates: what the tests, the demo and the benchmarks boot.
//!
//! *In*: an unpacked kernel ([`kernel`]), programs of this machine ([`programs`]) and a script. *Out*: an initramfs
//! ([`archive`]) and QEMU's arguments ([`qemu`]). [`agent`] is a guest whose first process runs blkkin's agent. The
//! callers start and end QEMU, each with the processes that it knows.
//!
//! *Invariant*: no root is needed, and nothing is installed.
//!
//! *Rejected*: KVM, which not every machine has, and which may not run these kernels when it is nested. An emulated
//! kernel reaches user space after 6 s. A tracer starts in 10 s, of which the verifier takes 6.

pub mod agent;
pub mod archive;
pub mod kernel;
pub mod programs;
pub mod qemu;

pub use archive::Archive;
pub use kernel::UnpackedKernel;
