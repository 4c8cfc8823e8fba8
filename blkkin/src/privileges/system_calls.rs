//! System calls that are denied: a seccomp filter for all threads of the process.
//!
//! *In*: lists of system calls. *Out*: each fails with EPERM, and the kernel writes an audit record
//! that names process and call (`type=1326` in its log). *Invariant*: a call that blkkin or one of
//! its libraries makes is in none of the lists.
//!
//! The lists name what is denied, not what is allowed: a C library that uses a new call after an
//! update must not fail in the middle of a trace. Calls of other tables are denied as a whole (32-bit
//! ones, and those of the x32 ABI, which have the same architecture and bit 30 set).
//!
//! *Rejected*: SECCOMP_RET_TRAP with a handler that counts (the audit record shows more); the crate
//! seccompiler, whose filters let calls of the x32 ABI pass.

use std::io;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W, EPERM,
    SECCOMP_FILTER_FLAG_LOG, SECCOMP_FILTER_FLAG_TSYNC, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO,
    SECCOMP_SET_MODE_FILTER, c_long, sock_filter, sock_fprog,
};

/// Calls that no blkkin process makes after its start.
pub(super) const NEVER: &[c_long] = &[
    // Other processes: their control, and writes to their memory.
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // The kernel itself.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_perf_event_open,
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_by_handle_at,
    // Clocks and names of the machine. Not adjtimex: it also reads the clock's error bound.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Keys.
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // Interfaces with many past errors that no part of blkkin uses.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_personality,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
];

/// Execution of programs and namespaces for them, which only a process with an LTTng session needs.
pub(super) const WITHOUT_LTTNG: &[c_long] =
    &[libc::SYS_execve, libc::SYS_execveat, libc::SYS_unshare, libc::SYS_setns];

/// Calls that only a tracer makes.
pub(super) const TRACING: &[c_long] = &[libc::SYS_bpf, libc::SYS_process_vm_readv];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// First number of the x32 ABI (`__X32_SYSCALL_BIT`, arch/x86/include/uapi/asm/unistd.h).
const X32: u32 = 0x4000_0000;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

/// Denies the calls of these lists in all threads, and returns how many there are. The error
/// is the reason why none is denied.
pub(super) fn deny(lists: &[&[c_long]]) -> Result<usize, String> {
    let numbers: Vec<u32> =
        lists.concat().into_iter().filter_map(|number| u32::try_from(number).ok()).collect();
    rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string())?;
    install(&program(&numbers)).map_err(|error| error.to_string())?;
    Ok(numbers.len())
}

/// Builds the filter. Its last instruction denies, the one before it allows.
fn program(numbers: &[u32]) -> Vec<sock_filter> {
    let (load, jump) = ((BPF_LD | BPF_W | BPF_ABS) as u16, (BPF_JMP | BPF_K) as u16);
    let (equal, not_below, result) = (jump | BPF_JEQ as u16, jump | BPF_JGE as u16, (BPF_RET | BPF_K) as u16);
    let last = numbers.len() + 5;
    // Jumps are relative to the next instruction.
    let to_last = |at: usize| u8::try_from(last - at - 1).expect("invariant: the lists have below 250 calls");
    // SAFETY: the functions of libc compute a structure from numbers.
    unsafe {
        let mut program = vec![
            BPF_STMT(load, ARCH),
            BPF_JUMP(equal, ARCHITECTURE, 0, to_last(1)),
            BPF_STMT(load, NUMBER),
            BPF_JUMP(not_below, X32, to_last(3), 0),
        ];
        let denied =
            numbers.iter().enumerate().map(|(n, number)| BPF_JUMP(equal, *number, to_last(n + 4), 0));
        program.extend(denied);
        program.push(BPF_STMT(result, SECCOMP_RET_ALLOW));
        program.push(BPF_STMT(result, SECCOMP_RET_ERRNO | EPERM as u32));
        program
    }
}

/// Installs the filter in all threads, which also sets their `no_new_privs`.
fn install(program: &[sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_LOG;
    // SAFETY: the kernel copies the program, which outlives the call.
    match unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program) } {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has a filter of its own"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does.
    fn allows(program: &[sock_filter], architecture: u32, number: u32) -> bool {
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let code = u32::from(code);
            at += 1;
            if code == BPF_LD | BPF_W | BPF_ABS {
                value = if k == ARCH { architecture } else { number };
            } else if code == BPF_RET | BPF_K {
                return k == SECCOMP_RET_ALLOW;
            } else {
                let holds = if code == BPF_JMP | BPF_K | BPF_JEQ { value == k } else { value >= k };
                at += usize::from(if holds { jt } else { jf });
            }
        }
    }

    #[test]
    fn listed_calls_and_other_tables_are_denied() {
        let lists = [NEVER, WITHOUT_LTTNG, TRACING].concat();
        let numbers: Vec<u32> = lists.iter().map(|number| u32::try_from(*number).unwrap()).collect();
        let program = program(&numbers);
        for number in 0..1_000 {
            assert_eq!(allows(&program, ARCHITECTURE, number), !numbers.contains(&number), "{number}");
            assert!(!allows(&program, ARCHITECTURE, X32 | number), "x32 {number}");
            assert!(!allows(&program, 0x4000_0003, number), "i386 {number}");
        }
    }
}
