//! `--syscall`: names of system calls.

use blkkin_wire::syscalls::{Arch, SyscallId};

use crate::error::CliError;
use crate::suggest::suggest;

#[cfg(target_arch = "x86_64")]
const ARCH: (Arch, &str) = (Arch::X86_64, "x86_64");
#[cfg(target_arch = "aarch64")]
const ARCH: (Arch, &str) = (Arch::Aarch64, "aarch64");

/// Resolves a system call that this architecture has.
pub(crate) fn syscall(name: &str) -> Result<SyscallId, CliError> {
    let Some(call) = SyscallId::by_name(name) else { return Err(unknown(name)) };
    if call.spec().number(ARCH.0).is_none() {
        return Err(CliError::usage(
            format!("no system call `{name}` on this machine"),
            format!("Linux on {} does not have it", ARCH.1),
            format!("--syscall {name}at, its successor in most cases"),
        ));
    }
    Ok(call)
}

fn unknown(name: &str) -> CliError {
    if name.is_empty() {
        return CliError::usage("no system call name for --syscall", "it is empty", "--syscall read,write");
    }
    // The C library's pread is the kernel's pread64.
    let own_name = SyscallId::by_name(&format!("{name}64")).map(SyscallId::name);
    let remedy = match own_name.or_else(|| suggest(name, SyscallId::all().map(SyscallId::name))) {
        Some(near) => format!("--syscall {near}"),
        None => "without --syscall blkkin traces every one; man 2 syscalls lists the names".into(),
    };
    let why = format!("it is none of the {} system calls that blkkin traces", SyscallId::COUNT);
    CliError::usage(format!("unknown system call `{name}`"), why, remedy)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn resolves_names_and_suggests_the_nearest() {
        assert_eq!(syscall("fsync").unwrap().name(), "fsync");
        assert_eq!(syscall("pread").unwrap_err().remedy, "--syscall pread64");
        assert_eq!(syscall("wirte").unwrap_err().remedy, "--syscall write");
        assert_eq!(syscall("").unwrap_err().remedy, "--syscall read,write");
        assert!(syscall("connect").unwrap_err().remedy.contains("every one"));
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn syscall_of_another_architecture_is_refused() {
        assert!(call("open").unwrap_err().remedy.contains("openat"));
    }
}
