//! Memory of another process, and substitutes for tests.

use std::cell::Cell;
use std::io;

/// Memory that may be unmapped, and that others may write at any time.
pub trait Memory {
    /// Fills `into` with the bytes at `address`. On none, the contents of `into` are undefined.
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()>;

    /// Reads 64 bits.
    fn read_u64(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Reads 32 bits.
    fn read_u32(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }
}

/// Memory of the process with this pid, by process_vm_readv(2).
pub struct ProcessMemory(pub u32);

impl ProcessMemory {
    /// Checks whether this process has access; `address` may be unmapped nevertheless.
    pub fn check_access(&self, address: u64) -> io::Result<()> {
        match self.read(address, &mut [0]) {
            Some(()) => Ok(()),
            None => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
                error => Err(error),
            },
        }
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: the kernel writes at most the bytes of `into`; the other side is another
        // process's.
        let read = unsafe { libc::process_vm_readv(self.0 as libc::pid_t, &local, 1, &remote, 1, 0) };
        (read == into.len() as isize).then_some(())
    }
}

/// Memory that records whether any read failed.
pub(crate) struct FaultTracking<'a, M> {
    memory: &'a M,
    pub(crate) faulted: Cell<bool>,
}

impl<'a, M> FaultTracking<'a, M> {
    pub(crate) fn new(memory: &'a M) -> FaultTracking<'a, M> {
        FaultTracking { memory, faulted: Cell::new(false) }
    }
}

impl<M: Memory> Memory for FaultTracking<'_, M> {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let read = self.memory.read(address, into);
        self.faulted.set(self.faulted.get() || read.is_none());
        read
    }
}

/// Bytes at an address.
#[cfg(test)]
pub(crate) struct FakeMemory {
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

#[cfg(test)]
impl Memory for FakeMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let from = usize::try_from(address.checked_sub(self.at)?).ok()?;
        into.copy_from_slice(self.bytes.get(from..from.checked_add(into.len())?)?);
        Some(())
    }
}
