//! Architectures whose system calls blkkin knows.
//!
//! A trace names the architecture that it was recorded on, because it may be read on another:
//! numbers and a few open flags differ. Only [`Arch::HOST`] depends on the architecture of this
//! build.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("blkkin knows the system calls of x86_64 and aarch64 only");

/// Architecture with its own table of system call numbers.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Arch {
    /// 64-bit x86, native calls (not i386, not x32).
    X86_64,
    /// 64-bit Arm, native calls (not 32-bit Arm).
    Aarch64,
}

impl Arch {
    /// Architecture of this build.
    #[cfg(target_arch = "x86_64")]
    pub const HOST: Arch = Arch::X86_64;
    /// Architecture of this build.
    #[cfg(target_arch = "aarch64")]
    pub const HOST: Arch = Arch::Aarch64;

    /// Known architectures, for tests and listings.
    pub const ALL: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

    /// Returns the name as `uname -m` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    /// Returns the architecture with the `uname -m` name `name`.
    pub fn by_name(name: &str) -> Option<Arch> {
        Arch::ALL.into_iter().find(|arch| arch.name() == name)
    }
}
