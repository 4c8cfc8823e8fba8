//! Positions of a system call's number, arguments and result in `struct pt_regs`, per architecture.

/// Offsets of the six arguments.
#[cfg(bpf_target_arch = "x86_64")]
// di si dx r10 r8 r9: arch/x86/include/asm/ptrace.h, arch/x86/entry/entry_64.S
pub const ARGS: [u32; 6] = [112, 104, 96, 56, 72, 64];
/// Offset of the system call number.
#[cfg(bpf_target_arch = "x86_64")]
pub const NUMBER: u32 = 120; // orig_ax
/// Offsets of the first four parameters of a kernel function.
#[cfg(bpf_target_arch = "x86_64")]
pub const PARAMETERS: [u32; 4] = [112, 104, 96, 88]; // di si dx cx
/// Offset of a system call's return value.
#[cfg(bpf_target_arch = "x86_64")]
pub const RETURNED: u32 = 80; // ax
/// Offset of the first argument while the system call returns.
#[cfg(bpf_target_arch = "x86_64")]
pub const FIRST_ARG_AT_RETURN: u32 = 112; // di
/// Offset of the address in `struct bpf_perf_event_data`, after registers and sample period.
#[cfg(bpf_target_arch = "x86_64")]
pub const PERF_ADDRESS: usize = 168 + 8;
/// Numbers of the system calls by which programs send and receive.
#[cfg(bpf_target_arch = "x86_64")]
// arch/x86/entry/syscalls/syscall_64.tbl
pub mod syscall {
    pub const READ: u64 = 0;
    pub const WRITE: u64 = 1;
    pub const READV: u64 = 19;
    pub const WRITEV: u64 = 20;
    pub const SENDTO: u64 = 44;
    pub const RECVFROM: u64 = 45;
    pub const SENDMSG: u64 = 46;
    pub const RECVMSG: u64 = 47;
}
/// Bit of `thread_info.status`: a 32-bit system call.
#[cfg(bpf_target_arch = "x86_64")]
pub const COMPAT: u32 = 0x0002; // TS_COMPAT, arch/x86/include/asm/thread_info.h

/// Offsets of the six arguments.
#[cfg(bpf_target_arch = "aarch64")]
// regs[0..6], arch/arm64/include/asm/ptrace.h
pub const ARGS: [u32; 6] = [0, 8, 16, 24, 32, 40];
/// Offset of the system call number.
#[cfg(bpf_target_arch = "aarch64")]
pub const NUMBER: u32 = 280; // syscallno
/// Offsets of the first four parameters of a kernel function.
#[cfg(bpf_target_arch = "aarch64")]
pub const PARAMETERS: [u32; 4] = [0, 8, 16, 24];
/// Offset of a system call's return value.
#[cfg(bpf_target_arch = "aarch64")]
pub const RETURNED: u32 = 0;
/// Offset of the first argument while the system call returns: the return value occupies its
/// original register.
#[cfg(bpf_target_arch = "aarch64")]
pub const FIRST_ARG_AT_RETURN: u32 = 272; // orig_x0
/// Offset of the address in `struct bpf_perf_event_data`, after registers and sample period.
#[cfg(bpf_target_arch = "aarch64")]
pub const PERF_ADDRESS: usize = 272 + 8; // struct user_pt_regs
/// Numbers of the system calls by which programs send and receive.
#[cfg(bpf_target_arch = "aarch64")]
// include/uapi/asm-generic/unistd.h
pub mod syscall {
    pub const READ: u64 = 63;
    pub const WRITE: u64 = 64;
    pub const READV: u64 = 65;
    pub const WRITEV: u64 = 66;
    pub const SENDTO: u64 = 206;
    pub const RECVFROM: u64 = 207;
    pub const SENDMSG: u64 = 211;
    pub const RECVMSG: u64 = 212;
}
/// Bit of `thread_info.flags`: a 32-bit task.
#[cfg(bpf_target_arch = "aarch64")]
pub const COMPAT: u32 = 1 << 22; // TIF_32BIT, arch/arm64/include/asm/thread_info.h
