//! A process's memory, or what stands for it in tests.

use std::cell::Cell;
use std::io;

/// Memory that may not be there, and that somebody else may write at any time.
pub(crate) trait Memory {
    /// Fills `into` with what is at `address`; or none of it is to be believed.
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()>;

    /// A word.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Half a word.
    fn half(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }
}

/// That of another process: process_vm_readv(2).
pub(crate) struct ProcessMemory(pub(crate) u32);

impl ProcessMemory {
    /// Whether this process has the right to; what is at `address` may be missing all the same.
    pub(crate) fn may_be_read(&self, address: u64) -> io::Result<()> {
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
        // SAFETY: the kernel writes at most the bytes of `into`; the other side is another process's.
        let read = unsafe { libc::process_vm_readv(self.0 as libc::pid_t, &local, 1, &remote, 1, 0) };
        (read == into.len() as isize).then_some(())
    }
}

/// Memory of which it is known afterwards whether all was there that was asked for.
pub(crate) struct Noted<'a, M> {
    memory: &'a M,
    pub(crate) missed: Cell<bool>,
}

impl<'a, M> Noted<'a, M> {
    pub(crate) fn of(memory: &'a M) -> Noted<'a, M> {
        Noted { memory, missed: Cell::new(false) }
    }
}

impl<M: Memory> Memory for Noted<'_, M> {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let read = self.memory.read(address, into);
        self.missed.set(self.missed.get() || read.is_none());
        read
    }
}

/// Bytes that lie at an address.
#[cfg(test)]
pub(crate) struct Bytes {
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

#[cfg(test)]
impl Memory for Bytes {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let from = usize::try_from(address.checked_sub(self.at)?).ok()?;
        into.copy_from_slice(self.bytes.get(from..from.checked_add(into.len())?)?);
        Some(())
    }
}
