//! `--syscall`: a name of the table of calls.

use blkkin_wire::calls::{Arch, CallId};

use crate::failure::Failure;
use crate::nearest::nearest;

#[cfg(target_arch = "x86_64")]
const ARCH: (Arch, &str) = (Arch::X86_64, "x86_64");
#[cfg(target_arch = "aarch64")]
const ARCH: (Arch, &str) = (Arch::Aarch64, "aarch64");

/// The call of that name, if this machine has it.
pub(crate) fn call(name: &str) -> Result<CallId, Failure> {
    let Some(call) = CallId::by_name(name) else { return Err(unknown(name)) };
    if call.spec().number(ARCH.0).is_none() {
        return Err(Failure::usage(
            format!("no system call `{name}` on this machine"),
            format!("Linux on {} does not have it", ARCH.1),
            format!("--syscall {name}at, which took its place for most such calls"),
        ));
    }
    Ok(call)
}

fn unknown(name: &str) -> Failure {
    if name.is_empty() {
        return Failure::usage("no system call's name for --syscall", "it is empty", "--syscall read,write");
    }
    // The C library's pread is the kernel's pread64.
    let own_name = CallId::by_name(&format!("{name}64")).map(CallId::name);
    let remedy = match own_name.or_else(|| nearest(name, CallId::all().map(CallId::name))) {
        Some(near) => format!("--syscall {near}"),
        None => {
            "without --syscall every one of them is traced; their names are those of man 2 syscalls".into()
        }
    };
    let why = format!("it is none of the {} calls that blkkin follows", CallId::COUNT);
    Failure::usage(format!("unknown system call `{name}`"), why, remedy)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn knows_names_and_suggests_the_nearest() {
        assert_eq!(call("fsync").unwrap().name(), "fsync");
        assert_eq!(call("pread").unwrap_err().remedy, "--syscall pread64");
        assert_eq!(call("wirte").unwrap_err().remedy, "--syscall write");
        assert_eq!(call("").unwrap_err().remedy, "--syscall read,write");
        assert!(call("connect").unwrap_err().remedy.contains("every one"));
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn a_call_of_another_architecture_is_refused() {
        assert!(call("open").unwrap_err().remedy.contains("openat"));
    }
}
